//! What a launch of a step must wait for, and whether that is enough.

use std::collections::BTreeSet;
use std::ops::Range;

/// A stretch of a buffer that a launch touches, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) buffer: usize,
    pub(super) elements: Range<usize>,
    pub(super) writes: bool,
}

/// The launches that each launch waits for, directly or by others.
pub(super) fn earlier<'a>(after: impl Iterator<Item = &'a [usize]>) -> Vec<BTreeSet<usize>> {
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
pub(super) fn direct(earlier: &[BTreeSet<usize>], made: &[bool]) -> Vec<Vec<usize>> {
    let place = |n: usize| made[..n].iter().filter(|made| **made).count();
    let waits = |n: usize| {
        let before: Vec<usize> = earlier[n].iter().copied().filter(|b| made[*b]).collect();
        let implied = |b: &usize| before.iter().any(|other| earlier[*other].contains(b));
        before.iter().filter(|b| !implied(b)).map(|b| place(*b)).collect()
    };
    (0..made.len()).filter(|n| made[*n]).map(waits).collect()
}

/// The first two launches, and the buffer, of which one writes what the other touches while neither waits for the other.
pub(super) fn unordered(earlier: &[BTreeSet<usize>], touches: &[Vec<Touch>]) -> Option<(usize, usize, usize)> {
    let pairs = (0..touches.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.into_iter().filter(|(first, second)| !earlier[*second].contains(first)).find_map(|(first, second)| {
        let all = touches[first].iter().flat_map(|a| touches[second].iter().map(move |b| (a, b)));
        let met = |(a, b): &(&Touch, &Touch)| a.buffer == b.buffer && (a.writes || b.writes) && overlap(a, b);
        all.into_iter().find(met).map(|(a, _)| (first, second, a.buffer))
    })
}

fn overlap(a: &Touch, b: &Touch) -> bool {
    a.elements.start < b.elements.end && b.elements.start < a.elements.end
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
    fn launches_that_meet_are_found() {
        let touch = |buffer, elements, writes| vec![Touch { buffer, elements, writes }];
        let touches = [touch(0, 0..4, true), touch(0, 4..8, true), touch(0, 3..5, false)];
        let found = |after: [&[usize]; 3]| unordered(&earlier(after.into_iter()), &touches);
        assert_eq!(found([&[], &[], &[]]), Some((0, 2, 0)));
        assert_eq!(found([&[], &[], &[0]]), Some((1, 2, 0)));
        assert_eq!(found([&[], &[], &[0, 1]]), None);
        assert_eq!(found([&[], &[0], &[1]]), None, "by another");
    }
}
