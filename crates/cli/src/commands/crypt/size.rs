//! Sizes on the command line: bytes, or with a suffix K, M, G, T for powers of 1024.

/// Parses a size in bytes.
pub(crate) fn parse(s: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "{s:?} is not a size: expected a number of bytes, or one with K, M, G or T (powers of 1024)"
        )
    };
    let (digits, shift) = match s.chars().last().map(|c| c.to_ascii_uppercase()) {
        Some('K') => (&s[..s.len() - 1], 10),
        Some('M') => (&s[..s.len() - 1], 20),
        Some('G') => (&s[..s.len() - 1], 30),
        Some('T') => (&s[..s.len() - 1], 40),
        _ => (s, 0),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let n: u64 = digits.parse().map_err(|_| bad())?;
    n.checked_mul(1 << shift)
        .ok_or_else(|| format!("{s:?} is larger than any device"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse("1G"), Ok(1 << 30));
        assert_eq!(parse("16T"), Ok(16 << 40));
        for bad in [
            "",
            "K",
            "-1",
            "+1",
            "1.5G",
            "1KB",
            "G1",
            "99999999999T",
            "18446744073709551616",
            "1 K",
            "é",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
