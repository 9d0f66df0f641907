//! What a launch of a step must wait for: shared by whoever builds a step and whoever draws it.

use std::collections::BTreeSet;

/// The launches that each launch waits for, directly or by others. A launch waits for earlier ones only.
pub fn earlier<'a>(after: impl Iterator<Item = &'a [usize]>) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    for direct in after {
        let further = direct.iter().flat_map(|n| all[*n].iter().copied());
        let found = direct.iter().copied().chain(further).collect();
        all.push(found);
    }
    all
}

/// Edges among the launches that are made, by place among them, without those that others imply. What a launch that is not
/// made waits for, its followers wait for.
pub fn direct(earlier: &[BTreeSet<usize>], made: &[bool]) -> Vec<Vec<usize>> {
    let place = |n: usize| made[..n].iter().filter(|made| **made).count();
    let waits = |n: usize| {
        let before: Vec<usize> = earlier[n].iter().copied().filter(|b| made[*b]).collect();
        // From the last on: where launches form a chain, it implies all others at once.
        let implied = |b: &usize| before.iter().rev().any(|other| earlier[*other].contains(b));
        before.iter().filter(|b| !implied(b)).map(|b| place(*b)).collect()
    };
    (0..made.len()).filter(|n| made[*n]).map(waits).collect()
}

/// The level of each launch: one more than the highest of those that it waits for. Launches of one level may run side by
/// side.
pub fn levels(after: &[Vec<usize>]) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::new();
    for direct in after {
        let level = direct.iter().map(|n| levels[*n] + 1).max().unwrap_or(0);
        levels.push(level);
    }
    levels
}

/// The height of each launch: one more than the highest of those that wait for it, 0 where none does.
pub fn heights(after: &[Vec<usize>]) -> Vec<usize> {
    let mut heights = vec![0; after.len()];
    for (n, direct) in after.iter().enumerate().rev() {
        direct.iter().for_each(|before| heights[*before] = heights[*before].max(heights[n] + 1));
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(after: &[&[usize]], made: &[bool]) -> Vec<Vec<usize>> {
        direct(&earlier(after.iter().copied()), made)
    }

    #[test]
    fn edges_that_others_imply_are_left_out() {
        let after: [&[usize]; 5] = [&[], &[0], &[0], &[0, 1, 2], &[3, 0]];
        assert_eq!(edges(&after, &[true; 5]), [vec![], vec![0], vec![0], vec![1, 2], vec![3]]);
    }

    #[test]
    fn a_launch_that_is_not_made_hands_its_edges_on() {
        let after: [&[usize]; 5] = [&[], &[], &[0, 1], &[2], &[2, 3]];
        let made = [true, true, false, true, true];
        assert_eq!(edges(&after, &made), [vec![], vec![], vec![0, 1], vec![2]]);
        assert_eq!(edges(&after, &[true, true, false, false, true])[2], [0, 1]);
        assert_eq!(edges(&after, &[false; 5]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn a_level_follows_the_longest_way() {
        let after = [vec![], vec![], vec![0], vec![1, 2], vec![0]];
        assert_eq!(levels(&after), [0, 0, 1, 2, 1]);
        assert_eq!(heights(&after), [2, 1, 1, 0, 0]);
    }
}
