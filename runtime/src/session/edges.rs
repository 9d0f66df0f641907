//! What a launch must wait for, by the memory that it touches.

use std::collections::BTreeSet;
use std::ops::Range;

/// A stretch of a buffer that a launch touches, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Touch {
    pub(super) buffer: usize,
    pub(super) elements: Range<usize>,
    pub(super) writes: bool,
}

/// The first two launches, and the buffer, of which one writes what the other touches while neither waits for the other.
pub(super) fn unordered(earlier: &[BTreeSet<usize>], touches: &[Vec<Touch>]) -> Option<(usize, usize, usize)> {
    let pairs = (0..touches.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    let free = pairs.into_iter().filter(|(first, second)| !earlier[*second].contains(first));
    free.into_iter().find_map(|(first, second)| Some((first, second, meet(&touches[first], &touches[second])?)))
}

/// For each launch of a step, those of the step before that it must wait for.
pub(super) fn meeting(touches: &[Vec<Touch>]) -> Vec<Vec<usize>> {
    let before = |own: &Vec<Touch>| (0..touches.len()).filter(|n| meet(&touches[*n], own).is_some()).collect();
    touches.iter().map(before).collect()
}

/// The first buffer of which one writes what the other touches.
fn meet(first: &[Touch], second: &[Touch]) -> Option<usize> {
    let pairs = first.iter().flat_map(|a| second.iter().map(move |b| (a, b)));
    let met = |(a, b): &(&Touch, &Touch)| a.buffer == b.buffer && (a.writes || b.writes) && overlap(a, b);
    pairs.into_iter().find(met).map(|(a, _)| a.buffer)
}

fn overlap(a: &Touch, b: &Touch) -> bool {
    a.elements.start < b.elements.end && b.elements.start < a.elements.end
}

#[cfg(test)]
mod tests {
    use unio_interface::edges::earlier;

    use super::*;

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

    #[test]
    fn a_step_waits_for_what_the_one_before_touched() {
        let touch = |elements, writes| Touch { buffer: 0, elements, writes };
        let (writes, reads) = (vec![touch(0..4, true)], vec![touch(2..6, false), touch(6..8, true)]);
        assert_eq!(meeting(&[writes, reads, vec![touch(4..6, false)]]), [vec![0, 1], vec![0, 1], vec![]]);
    }
}
