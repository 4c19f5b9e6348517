//! SHA-512, for whoever checks what comes back from a device.
//!
//! From the C library that has the cipher already, with its assembly: one more hash crate would be a second copy of the same.

/// Bytes of a SHA-512 digest.
pub const SHA512_LEN: usize = 64;

/// The SHA-512 digest of `data`. Never blocks, never fails; O(length), about 1.5 ns a byte without special instructions.
pub fn sha512(data: &[u8]) -> [u8; SHA512_LEN] {
    let mut out = [0; SHA512_LEN];
    // SAFETY: `data` is readable for its length and `out` writable for 64 bytes, which is what SHA512 asks for; it keeps neither.
    unsafe { aws_lc_sys::SHA512(data.as_ptr(), data.len(), out.as_mut_ptr()) };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// FIPS 180-4's examples: the empty message and "abc".
    #[test]
    fn published_vectors() {
        assert_eq!(
            hex(&sha512(b"")),
            "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
             47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
        );
        assert_eq!(
            hex(&sha512(b"abc")),
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
        );
    }
}
