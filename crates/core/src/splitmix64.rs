//! A 64-bit hash, the same on every node and in every run: it spreads sessions over replicas and nodes, keeps heaps
//! flat and makes simulated chance.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[must_use]
pub fn splitmix64(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::splitmix64;

    /// Sessions keep their replicas across versions only if the numbers stay those of the reference implementation.
    #[test]
    fn matches_the_reference_implementation() {
        assert_eq!([splitmix64(0), splitmix64(0x9e37_79b9_7f4a_7c15)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
