//! Cutting a last-level cache into shards of about equally many cores.

use crate::CpuSet;

/// Cores in a pod of scope `cache_shard`, as in the kernel's `cache_shard_size`.
pub const DEFAULT_CACHE_SHARD_SIZE: usize = 8;

/// How many cores each shard of a cache with `cores` cores gets: `cores / size` rounded to the
/// nearest (half up) is the number of shards, at least one; the first ones get one core more
/// where it does not divide evenly. So 8 wanted cores make 9..=11 cores one shard, 12 make 6 + 6.
pub(crate) fn shard_sizes(cores: usize, size: usize) -> impl Iterator<Item = usize> {
    let size = size.max(1);
    let shards = ((cores + size / 2) / size).max(1);
    let (each, more) = (cores / shards, cores % shards);
    (0..shards).map(move |i| each + usize::from(i < more))
}

/// Cuts the CPUs of one cache. `cores` are the cores whose first CPU lies in it, ascending by
/// that CPU; a core is never split.
pub(crate) fn cut<'a>(cores: &[&'a CpuSet], size: usize) -> Vec<Vec<&'a CpuSet>> {
    let mut rest = cores;
    shard_sizes(cores.len(), size)
        .map(|n| {
            let (shard, tail) = rest.split_at(n);
            rest = tail;
            shard.to_vec()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_kernels_rounding() {
        let sizes = |cores, size| shard_sizes(cores, size).collect::<Vec<_>>();
        assert_eq!(sizes(9, 8), [9]);
        assert_eq!(sizes(11, 8), [11]);
        assert_eq!(sizes(12, 8), [6, 6]);
        assert_eq!(sizes(19, 8), [10, 9]);
        assert_eq!(sizes(36, 8), [8, 7, 7, 7, 7]);
        assert_eq!(sizes(72, 8), [8; 9]);
        assert_eq!(sizes(3, 0), [1, 1, 1]);
        assert_eq!(sizes(5, usize::MAX - 4), [5]);
    }
}
