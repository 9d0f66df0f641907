//! Whether what a launch of a step waits for is enough.

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
}
