//! Reproducible pseudo-randomness: the same seed gives the same numbers on every machine and in every version.

/// A stream of numbers from a seed (`SplitMix64`). Not for secrets.
#[derive(Clone, Copy, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// A stream that depends on every one of `parts`, and on their order.
    #[must_use]
    pub fn new(parts: &[u64]) -> Self {
        let mut it = Self(0x6b76_7069_636b_2121);
        for part in parts {
            it.mix(*part);
        }
        it
    }

    /// Makes what follows depend on `value` as well.
    pub fn mix(&mut self, value: u64) {
        self.0 ^= value;
        self.0 = self.next_u64();
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product is uniform enough for any bound that fits memory.
        let product = u128::from(self.next_u64()) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        // 53 bits are what an f64 holds.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_every_part_and_their_order() {
        let first = |parts: &[u64]| Seeded::new(parts).next_u64();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1]), first(&[1, 0]));
    }

    #[test]
    fn stays_within_bounds() {
        let mut it = Seeded::new(&[7]);
        let mut seen = [0; 3];
        for _ in 0..300 {
            seen[it.below(3)] += 1;
            assert!((0.0..1.0).contains(&it.unit()));
        }
        assert!(seen.iter().all(|n| 50 < *n), "{seen:?}");
        assert_eq!(it.below(0), 0);
    }
}
