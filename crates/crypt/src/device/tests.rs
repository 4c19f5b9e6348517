//! Devices and volumes: what a disk promises.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::cipher::{IvUnit, Key, SectorCipher};

fn cipher(sector: SectorSize) -> SectorCipher {
    let key: Vec<u8> = (0..64).collect();
    SectorCipher::new(Key::from_bytes(&key).unwrap(), sector, IvUnit::B512).unwrap()
}

fn open(path: &Path, read_only: bool, size: Option<u64>) -> Result<FileDevice, OpenError> {
    FileDevice::open(path, FileOptions { read_only, size })
}

#[test]
fn size_makes_lengthens_and_never_shortens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    assert!(
        open(&path, false, None)
            .unwrap_err()
            .to_string()
            .contains("No such file")
    );
    assert!(
        open(&path, true, Some(4096)).is_err(),
        "nothing is made read-only"
    );
    assert_eq!(open(&path, false, Some(8192)).unwrap().size(), 8192);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(open(&path, false, Some(16384)).unwrap().size(), 16384);
    let e = open(&path, false, Some(4096)).unwrap_err().to_string();
    assert!(e.contains("has 16384 bytes, more than the 4096"), "{e}");
    let e = open(&path, true, Some(1 << 20)).unwrap_err().to_string();
    assert!(e.contains("read-only"), "{e}");
    assert_eq!(open(&path, true, None).unwrap().size(), 16384);
    assert!(
        open(dir.path(), true, None)
            .unwrap_err()
            .to_string()
            .contains("neither a file nor a block device")
    );
    assert!(
        open(Path::new("/dev/null"), false, None)
            .unwrap_err()
            .to_string()
            .contains("neither")
    );
}

#[test]
fn one_writer_or_many_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let writer = open(&path, false, Some(4096)).unwrap();
    for read_only in [false, true] {
        assert!(
            open(&path, read_only, None)
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
    }
    drop(writer);
    let _one = open(&path, true, None).unwrap();
    let _two = open(&path, true, None).unwrap();
    assert!(open(&path, false, None).is_err());
}

fn volumes(size: u64) -> Vec<(&'static str, Volume)> {
    let memory = || Arc::new(FileDevice::memory(size).unwrap());
    vec![
        ("512", Volume::encrypted(memory(), cipher(SectorSize::B512))),
        (
            "4096",
            Volume::encrypted(memory(), cipher(SectorSize::B4096)),
        ),
        ("plain", Volume::plain(memory(), SectorSize::B512)),
    ]
}

#[test]
fn round_trip_zeroes_and_trim() {
    for (name, v) in volumes(4 << 20) {
        let data: Vec<u8> = (0..3 << 20).map(|i| (i / 512 + i) as u8).collect();
        v.write(8192, &mut data.clone(), false).unwrap();
        let mut back = vec![0; data.len()];
        v.read(8192, &mut back).unwrap();
        assert!(back == data, "{name}");
        let mut scratch = vec![0xaa; 100_000];
        v.write_zeroes(8192, 2 << 20, name == "512", &mut scratch)
            .unwrap();
        v.read(8192, &mut back).unwrap();
        assert!(back[..2 << 20].iter().all(|&b| b == 0), "{name}");
        assert!(back[2 << 20..] == data[2 << 20..], "{name}");
        v.write(8192, &mut data.clone(), true).unwrap();
        v.trim(8192 + 4096, 1 << 20).unwrap();
        v.read(8192, &mut back).unwrap();
        assert!(
            back[..4096] == data[..4096] && back[4096 + (1 << 20)..] == data[4096 + (1 << 20)..],
            "{name}"
        );
        let mut again = vec![0; data.len()];
        v.read(8192, &mut again).unwrap();
        assert!(
            again == back,
            "{name}: what a trimmed range reads as is stable"
        );
        let zero = back[4096..4096 + (1 << 20)].iter().all(|&b| b == 0);
        assert_eq!(zero, name == "plain", "{name}: holes decrypt to noise");
        v.flush().unwrap();
    }
}

#[test]
fn trim_gives_the_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let v = Volume::encrypted(
        Arc::new(open(&path, false, Some(8 << 20)).unwrap()),
        cipher(SectorSize::B512),
    );
    v.write(0, &mut vec![1; 8 << 20], true).unwrap();
    v.flush().unwrap();
    let before = std::fs::metadata(&path).unwrap().blocks();
    v.trim(0, 8 << 20).unwrap();
    v.flush().unwrap();
    let after = std::fs::metadata(&path).unwrap().blocks();
    if after == before {
        println!(
            "skipped: the file system of {} has no holes",
            dir.path().display()
        );
    } else {
        assert!(after < before / 4, "{before} -> {after}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 << 20);
}

#[test]
fn bad_ranges_are_refused() {
    for (name, v) in volumes(1 << 20) {
        let size = v.size();
        let mut big = vec![0u8; 8192];
        for (offset, len) in [
            (1u64, 4096usize),
            (0, 100),
            (size, 4096),
            (size - 4096, 8192),
            (u64::MAX - 4095, 4096),
        ] {
            let kind = |r: io::Result<()>| r.unwrap_err().kind();
            assert_eq!(
                kind(v.read(offset, &mut big[..len])),
                ErrorKind::InvalidInput,
                "{name} {offset} {len}"
            );
            assert_eq!(
                kind(v.write(offset, &mut big[..len], false)),
                ErrorKind::InvalidInput
            );
            assert_eq!(kind(v.trim(offset, len as u64)), ErrorKind::InvalidInput);
        }
        if v.is_encrypted() {
            assert!(v.write_zeroes(0, 4096, false, &mut [0; 100]).is_err());
        }
    }
}

#[test]
fn a_tail_shorter_than_a_sector_is_left_out() {
    let v = Volume::encrypted(
        Arc::new(FileDevice::memory(10_000).unwrap()),
        cipher(SectorSize::B4096),
    );
    assert_eq!(v.size(), 8192);
}

#[test]
fn read_only_refuses_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(open(&path, false, Some(1 << 20)).unwrap());
    let v = Volume::encrypted(
        Arc::new(open(&path, true, None).unwrap()),
        cipher(SectorSize::B512),
    );
    assert!(v.read_only());
    v.read(0, &mut [0; 512]).unwrap();
    v.flush().unwrap();
    let kind = |r: io::Result<()>| r.unwrap_err().kind();
    assert_eq!(
        kind(v.write(0, &mut [0; 512], false)),
        ErrorKind::ReadOnlyFilesystem
    );
    assert_eq!(kind(v.trim(0, 512)), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(
        kind(v.write_zeroes(0, 512, false, &mut [0; 512])),
        ErrorKind::ReadOnlyFilesystem
    );
}

/// A file that becomes shorter behind our back gives an error, never old or made-up bytes.
#[test]
fn a_shrunken_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let v = Volume::encrypted(
        Arc::new(open(&path, false, Some(1 << 20)).unwrap()),
        cipher(SectorSize::B512),
    );
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    assert_eq!(
        v.read(8192, &mut [0; 512]).unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
}

/// Writers and readers of the same blocks at once: each block is one writer's, whole.
#[test]
fn overlapping_calls_show_whole_blocks() {
    for (name, v) in volumes(1 << 20) {
        let (v, stop) = (&v, &AtomicBool::new(false));
        for block in 0..16u64 {
            v.write(block * 4096, &mut [1; 4096], false).unwrap();
        }
        std::thread::scope(|s| {
            let writers: Vec<_> = (1..=3u8)
                .map(|w| {
                    s.spawn(move || {
                        for round in 0..300u64 {
                            let from = (round + u64::from(w)) % 12;
                            v.write(from * 4096, &mut [w; 4 * 4096], false).unwrap();
                        }
                    })
                })
                .collect();
            let reader = s.spawn(move || {
                let mut data = vec![0; 16 * 4096];
                let mut reads = 0;
                while !stop.load(Ordering::Relaxed) || reads == 0 {
                    v.read(0, &mut data).unwrap();
                    for block in data.chunks(4096) {
                        assert!(
                            (1..=3).contains(&block[0]) && block.iter().all(|&b| b == block[0]),
                            "{name}: torn"
                        );
                    }
                    reads += 1;
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }
}

/// A device whose flush fails once: afterwards no flush may succeed.
#[test]
fn a_failed_flush_is_never_forgotten() {
    // A pipe opened as a device cannot be synced: EINVAL, a real failure of a real call.
    let (_r, w) = std::io::pipe().unwrap();
    let device = file::tests_support(std::os::fd::OwnedFd::from(w).into());
    assert!(device.flush().is_err());
    let e = device.flush().unwrap_err().to_string();
    assert!(e.contains("earlier flush failed"), "{e}");
    assert!(
        device
            .write_at(0, &[0; 512], true)
            .unwrap_err()
            .to_string()
            .contains("earlier flush failed")
    );
}
