//! The bytes on disk against implementations that share nothing with ours: cryptsetup, qemu-img, Python's cryptography.
//!
//! Each test prints `skipped:` where its tool is missing. None needs a kernel device or privilege.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use cmwq_crypt::cipher::{IvUnit, SectorCipher, SectorSize};
use common::{key, pattern};

/// Whether a program can be started.
fn have(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn run(program: &str, args: &[&str], folder: &Path) -> String {
    let out = Command::new(program)
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        out.status.success(),
        "{program} {args:?}: {stdout} {stderr}"
    );
    stdout.into_owned()
}

fn cipher(sector: SectorSize, iv: IvUnit) -> SectorCipher {
    SectorCipher::new(key(), sector, iv).unwrap()
}

/// A LUKS1 header over our key, made by cryptsetup; then qemu-img, which has its own implementation, reads what we
/// encrypted, and we read what it encrypted.
#[test]
fn luks1_of_cryptsetup_read_and_written_by_qemu_img() {
    if !(have("cryptsetup") && have("qemu-img")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    const LEN: usize = 1 << 20;
    std::fs::write(dir.join("master"), key().as_bytes()).unwrap();
    std::fs::write(dir.join("pass"), b"secret").unwrap();
    std::fs::write(dir.join("disk"), vec![0u8; (4 << 20) + LEN]).unwrap();
    let format = "luksFormat -q --type luks1 --cipher aes-xts-plain64 --key-size 512 --pbkdf-force-iterations 1000 \
                  --master-key-file master disk pass";
    run(
        "cryptsetup",
        &format.split_whitespace().collect::<Vec<_>>(),
        dir,
    );
    let dump = run("cryptsetup", &["luksDump", "disk"], dir);
    let payload = dump
        .lines()
        .find_map(|l| l.strip_prefix("Payload offset:"))
        .expect("payload offset in luksDump");
    let payload = payload.trim().parse::<usize>().unwrap() * 512;

    // Ours to theirs.
    let plain = pattern(11, LEN);
    let mut encrypted = plain.clone();
    cipher(SectorSize::B512, IvUnit::B512)
        .encrypt(0, &mut encrypted)
        .unwrap();
    let mut disk = std::fs::read(dir.join("disk")).unwrap();
    disk.truncate(payload);
    disk.extend_from_slice(&encrypted);
    std::fs::write(dir.join("disk"), &disk).unwrap();
    let secret = "secret,id=s,file=pass";
    let luks = "driver=luks,key-secret=s,file.driver=file,file.filename=disk";
    run(
        "qemu-img",
        &[
            "convert",
            "--object",
            secret,
            "--image-opts",
            luks,
            "-O",
            "raw",
            "out",
        ],
        dir,
    );
    assert!(std::fs::read(dir.join("out")).unwrap() == plain);

    // Theirs to ours.
    let other = pattern(12, LEN);
    std::fs::write(dir.join("in"), &other).unwrap();
    let args = [
        "convert",
        "-n",
        "--object",
        secret,
        "-f",
        "raw",
        "in",
        "--target-image-opts",
        luks,
    ];
    run("qemu-img", &args, dir);
    let disk = std::fs::read(dir.join("disk")).unwrap();
    let mut data = disk[payload..payload + LEN].to_vec();
    assert!(data != other);
    cipher(SectorSize::B512, IvUnit::B512)
        .decrypt(0, &mut data)
        .unwrap();
    assert!(data == other);
}

/// Python's cryptography encrypts each sector by itself, with dm-crypt's IV rule written out in Python.
#[test]
fn python_cryptography_agrees_for_all_sector_sizes() {
    const SCRIPT: &str = r#"
import sys
try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
except ImportError:
    sys.exit(77)
key, sector, unit, first = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
data = sys.stdin.buffer.read()
for i in range(0, len(data), sector):
    number = (first * sector + i) // unit
    e = Cipher(algorithms.AES(key), modes.XTS(number.to_bytes(16, "little"))).encryptor()
    sys.stdout.buffer.write(e.update(data[i:i + sector]) + e.finalize())
"#;
    if !have("python3") {
        return;
    }
    let hex: String = key()
        .as_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let cases = [
        (SectorSize::B512, IvUnit::B512, 512u64),
        (SectorSize::B4096, IvUnit::B512, 512),
        (SectorSize::B4096, IvUnit::Sector, 4096),
    ];
    for (sector, iv, unit) in cases {
        // The last one is past what 32 bits of sector number hold: plain64, not plain.
        for first in [0u64, 1, 12_345, (1 << 32) - 1, 1 << 33] {
            let plain = pattern(first + 1, 4096 * 3);
            let n = sector.bytes().to_string();
            let mut child = Command::new("python3")
                .args([
                    "-c",
                    SCRIPT,
                    &hex,
                    &n,
                    &unit.to_string(),
                    &first.to_string(),
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // A child that cannot import leaves at once; then the pipe is closed, and the status tells why.
            let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), &plain);
            let out = child.wait_with_output().unwrap();
            if out.status.code() == Some(77) {
                println!(
                    "skipped: python3 has no module cryptography (Debian: python3-cryptography)"
                );
                return;
            }
            assert!(out.status.success());
            let mut ours = plain.clone();
            cipher(sector, iv)
                .encrypt(first * sector.bytes() as u64, &mut ours)
                .unwrap();
            assert!(ours == out.stdout, "{sector:?} {iv:?} from sector {first}");
        }
    }
}

/// cryptsetup encrypts a file in place with its own user-space code, as LUKS2 with 512- and with 4096-byte sectors: this
/// shows how LUKS2 counts the IV of large sectors.
#[test]
fn luks2_of_cryptsetup_with_512_and_4096_byte_sectors() {
    if !have("cryptsetup") {
        return;
    }
    for (size, sector) in [("512", SectorSize::B512), ("4096", SectorSize::B4096)] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let plain = pattern(31, 4 << 20);
        std::fs::write(dir.join("master"), key().as_bytes()).unwrap();
        std::fs::write(dir.join("pass"), b"secret").unwrap();
        std::fs::write(dir.join("data"), &plain).unwrap();
        std::fs::File::create(dir.join("header"))
            .unwrap()
            .set_len(16 << 20)
            .unwrap();
        let reencrypt = "reencrypt --encrypt -q --type luks2 --cipher aes-xts-plain64 --key-size 512 --pbkdf pbkdf2 \
                         --pbkdf-force-iterations 1000 --disable-locks --header header --key-file pass \
                         --master-key-file master --sector-size";
        let out = Command::new("cryptsetup")
            .args(reencrypt.split_whitespace())
            .args([size, "data"])
            .current_dir(dir)
            .output()
            .unwrap();
        let data = std::fs::read(dir.join("data")).unwrap();
        if !out.status.success() && data == plain {
            let why = String::from_utf8_lossy(&out.stderr);
            println!(
                "skipped: this cryptsetup cannot encrypt a file without a device: {}",
                why.trim()
            );
            return;
        }
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let mut ours = plain.clone();
        cipher(sector, IvUnit::B512).encrypt(0, &mut ours).unwrap();
        assert!(ours == data, "{size}-byte sectors");
    }
}
