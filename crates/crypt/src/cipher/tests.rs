//! The layout against published vectors and against a second implementation that shares no code with the first.

use aes::cipher::KeyInit;
use proptest::prelude::*;

use super::*;

/// IEEE 1619-2007, annex B: the key of vectors 10 to 14 (digits of e, then of pi).
const IEEE_KEY: &str = "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197169399375105820974944592";

fn unhex(s: &str) -> Vec<u8> {
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
        .collect()
}

fn cipher(key: &[u8], sector: SectorSize, iv: IvUnit) -> SectorCipher {
    SectorCipher::new(Key::from_bytes(key).unwrap(), sector, iv).unwrap()
}

/// The second implementation, with the IV rule written out again.
fn reference(key: &[u8], sector: usize, iv_unit: u64, offset: u64, data: &mut [u8]) {
    let data_key = aes::Aes256::new_from_slice(&key[..32]).unwrap();
    let tweak_key = aes::Aes256::new_from_slice(&key[32..]).unwrap();
    let xts = xts_mode::Xts128::new(data_key, tweak_key);
    for (i, chunk) in data.chunks_mut(sector).enumerate() {
        let at = offset + (i * sector) as u64;
        xts.encrypt_sector(chunk, u128::from(at / iv_unit).to_le_bytes().into());
    }
}

#[test]
fn ieee_1619_vectors() {
    let plain: Vec<u8> = (0..512).map(|i| i as u8).collect();
    let cipher = cipher(&unhex(IEEE_KEY), SectorSize::B512, IvUnit::B512);
    let mut seen = 0;
    for line in include_str!("vectors/ieee1619.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let (number, expected) = line.split_once(' ').unwrap();
        let offset = u64::from_str_radix(number, 16).unwrap() * 512;
        let mut data = plain.clone();
        cipher.encrypt(offset, &mut data).unwrap();
        assert_eq!(data, unhex(expected), "data unit {number}");
        cipher.decrypt(offset, &mut data).unwrap();
        assert_eq!(data, plain, "data unit {number}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

/// dm-crypt counts the IV in 512-byte units unless iv_large_sectors is set: 4096-byte sector 3 has number 24, or 3.
#[test]
fn large_sectors_count_the_iv_as_dm_crypt_does() {
    let key = unhex(IEEE_KEY);
    for (unit, number) in [(IvUnit::B512, 24u128), (IvUnit::Sector, 3)] {
        let mut data = vec![0x5a; 4096];
        let mut expected = data.clone();
        cipher(&key, SectorSize::B4096, unit)
            .encrypt(3 * 4096, &mut data)
            .unwrap();
        let xts = xts_mode::Xts128::new(
            aes::Aes256::new_from_slice(&key[..32]).unwrap(),
            aes::Aes256::new_from_slice(&key[32..]).unwrap(),
        );
        xts.encrypt_sector(&mut expected, number.to_le_bytes().into());
        assert!(data == expected, "{unit:?}");
    }
}

#[test]
fn unaligned_runs_are_refused_untouched() {
    let c = cipher(&unhex(IEEE_KEY), SectorSize::B4096, IvUnit::B512);
    let mut data = vec![1u8; 8192];
    for (offset, len) in [(512, 4096), (0, 512), (0, 4095), (1, 8192)] {
        let e = c.encrypt(offset, &mut data[..len]).unwrap_err();
        assert!(matches!(e, CipherError::Unaligned { .. }), "{e}");
        assert!(data.iter().all(|&b| b == 1));
    }
    c.encrypt(0, &mut []).unwrap();
}

#[test]
fn many_threads_share_one_cipher() {
    let key = unhex(IEEE_KEY);
    let c = cipher(&key, SectorSize::B512, IvUnit::B512);
    std::thread::scope(|s| {
        for t in 0..8u64 {
            let (c, key) = (&c, &key);
            s.spawn(move || {
                for round in 0..200u64 {
                    let offset = (t * 1000 + round) * 512;
                    let mut data = vec![t as u8; 1024];
                    let mut expected = data.clone();
                    c.encrypt(offset, &mut data).unwrap();
                    if round % 50 == 0 {
                        reference(key, 512, 512, offset, &mut expected);
                        assert!(data == expected);
                    }
                    c.decrypt(offset, &mut data).unwrap();
                    assert!(data.iter().all(|&b| b == t as u8));
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn equals_a_second_implementation(
        key in proptest::collection::vec(any::<u8>(), 64),
        large in any::<bool>(),
        per_sector in any::<bool>(),
        first in 0u64..(1 << 50),
        sectors in 1usize..6,
        fill in any::<u8>(),
    ) {
        prop_assume!(key[..32] != key[32..]);
        let sector = if large { SectorSize::B4096 } else { SectorSize::B512 };
        let unit = if per_sector { IvUnit::Sector } else { IvUnit::B512 };
        let n = sector.bytes();
        let offset = first * n as u64;
        let plain: Vec<u8> = (0..n * sectors).map(|i| (i as u8).wrapping_mul(fill)).collect();
        let mut data = plain.clone();
        let mut expected = plain.clone();
        let c = cipher(&key, sector, unit);
        c.encrypt(offset, &mut data).unwrap();
        let iv_unit = if per_sector { n as u64 } else { 512 };
        reference(&key, n, iv_unit, offset, &mut expected);
        prop_assert!(data == expected);
        c.decrypt(offset, &mut data).unwrap();
        prop_assert!(data == plain);
    }
}
