//! Random numbers as pure functions of a seed, a name and a position: no generator has a state that order could change.
//!
//! The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011),
//! which kernels can compute alike.

use sha2::{Digest, Sha256};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox 4x32-10: four random words for a counter under a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        let (a_low, a_high) = halves(a);
        let (b_low, b_high) = halves(b);
        counter = [b_high ^ counter[1] ^ key[0], b_low, a_high ^ counter[3] ^ key[1], a_low];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// An endless row of random words; each is found by its position alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    name: [u32; 2],
}

impl Stream {
    /// The stream of this name under this seed. Names give streams that have nothing to do with each other.
    pub fn new(seed: u64, name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let word = |at: usize| u32::from_le_bytes([digest[at], digest[at + 1], digest[at + 2], digest[at + 3]]);
        let (low, high) = halves(seed);
        Self { key: [low, high], name: [word(0), word(4)] }
    }

    /// Word number `at`.
    pub fn word(&self, at: u64) -> u32 {
        self.block(at / 4)[(at % 4) as usize]
    }

    /// Uniform in (-1, 1), number `at`: one of 2^32 values, symmetric about zero.
    pub fn symmetric(&self, at: u64) -> f64 {
        (f64::from(self.word(at)) + 0.5) / f64::from(1u32 << 31) - 1.0
    }

    /// Uniform in `0..bound`, number `at`; 0 where `bound` is 0. Its bias is below `bound` / 2^64.
    fn below(&self, at: u64, bound: u64) -> u64 {
        let block = self.block(at / 2);
        let lane = 2 * (at % 2) as usize;
        let draw = (u64::from(block[lane + 1]) << 32) | u64::from(block[lane]);
        ((u128::from(draw) * u128::from(bound)) >> 64) as u64
    }

    fn block(&self, number: u64) -> [u32; 4] {
        let (low, high) = halves(number);
        philox([low, high, self.name[0], self.name[1]], self.key)
    }
}

/// `items` in the random order of this epoch (Fisher and Yates). A resumed run, which knows seed and epoch, shuffles as
/// the uninterrupted one did.
pub fn permutation(seed: u64, epoch: u64, items: &[i32]) -> Vec<i32> {
    let stream = Stream::new(seed, &format!("permutation/{epoch}"));
    let mut shuffled = items.to_vec();
    for last in (1..shuffled.len()).rev() {
        let other = stream.below(last as u64, last as u64 + 1);
        shuffled.swap(last, other as usize);
    }
    shuffled
}

/// Low and high word.
fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The known answers that its authors publish with Random123.
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn symmetric_numbers_fill_the_interval() {
        let stream = Stream::new(7, "x");
        let drawn: Vec<f64> = (0..40_000).map(|at| stream.symmetric(at)).collect();
        let mean = drawn.iter().sum::<f64>() / 40_000.0;
        let square = drawn.iter().map(|x| x * x).sum::<f64>() / 40_000.0;
        assert!(drawn.iter().all(|x| x.abs() < 1.0));
        assert!(mean.abs() < 0.02 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
    }

    /// All six orders of three items, about equally often.
    #[test]
    fn permutations_are_uniform() {
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6000 {
            *counts.entry(permutation(3, epoch, &[1, 2, 3])).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn a_permutation_keeps_every_item(seed: u64, epoch: u64, items: Vec<i32>) {
            let mut shuffled = permutation(seed, epoch, &items);
            prop_assert_eq!(&shuffled, &permutation(seed, epoch, &items));
            let mut items = items;
            shuffled.sort_unstable();
            items.sort_unstable();
            prop_assert_eq!(shuffled, items);
        }
    }
}
