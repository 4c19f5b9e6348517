//! Real clients, which others wrote: libnbd's tools, qemu's, fio, nbdkit. Each test prints `skipped:` where its tool is missing.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use cmwq_crypt::server::Config;
use common::*;

/// The output of a program that must succeed, or `None` if it is not installed.
fn tool(program: &str, args: &[&str], folder: &Path) -> Option<Output> {
    match Command::new(program)
        .args(args)
        .current_dir(folder)
        .output()
    {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(e) => panic!("{program}: {e}"),
        Ok(out) => {
            let (stdout, stderr) = (
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr),
            );
            assert!(
                out.status.success(),
                "{program} {args:?}: {stdout} {stderr}"
            );
            Some(out)
        }
    }
}

fn servers() -> Vec<(&'static str, Running)> {
    executors()
        .into_iter()
        .map(|(n, e)| (n, Running::start(memory(64 << 20), e, Config::default())))
        .collect()
}

#[test]
fn nbdinfo_sees_the_export() {
    let folder = tempfile::tempdir().unwrap();
    for (_, s) in servers() {
        let Some(out) = tool("nbdinfo", &["--json", &s.server().uri()], folder.path()) else {
            return;
        };
        let text = String::from_utf8(out.stdout).unwrap();
        for expected in [
            "\"structured\": true",
            "\"export-size\": 67108864",
            "\"can_multi_conn\": true",
            "\"can_fua\": true",
            "\"can_trim\": true",
            "\"can_zero\": true",
            "\"can_df\": true",
            "\"block_size_minimum\": 512",
            "\"is_read_only\": false",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let list = tool("nbdinfo", &["--list", &s.server().uri()], folder.path()).unwrap();
        assert!(String::from_utf8_lossy(&list.stdout).contains("export=\"\""));
    }
}

#[test]
fn nbdcopy_there_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // With holes, so that zeroes are written too.
    let mut data = pattern(21, 64 << 20);
    data[10 << 20..20 << 20].fill(0);
    std::fs::write(dir.join("in"), &data).unwrap();
    for (name, s) in servers() {
        let uri = s.server().uri();
        if tool("nbdcopy", &["in", &uri], dir).is_none() {
            return;
        }
        for (n, extra) in ["--connections=4", "--synchronous", "--flush"]
            .iter()
            .enumerate()
        {
            let out = format!("out{n}");
            tool("nbdcopy", &[extra, &uri, &out], dir).unwrap();
            assert!(
                std::fs::read(dir.join(&out)).unwrap() == data,
                "{name} {extra}"
            );
        }
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let data = pattern(22, 64 << 20);
    std::fs::write(dir.join("in"), &data).unwrap();
    for (_, s) in servers() {
        let uri = s.server().uri();
        if tool(
            "qemu-img",
            &["convert", "-n", "-f", "raw", "-O", "raw", "in", &uri],
            dir,
        )
        .is_none()
        {
            return;
        }
        tool(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", "in", &uri],
            dir,
        )
        .unwrap();
        assert_eq!(s.client(true).read(0, 1 << 20).unwrap(), data[..1 << 20]);
    }
}

#[test]
fn qemu_io_patterns() {
    let folder = tempfile::tempdir().unwrap();
    for (name, s) in servers() {
        let uri = s.server().uri();
        let mut args = vec!["-f", "raw"];
        let commands = [
            "write -P 0x11 0 1M",
            "write -f -P 0x22 1M 512",
            "aio_write -P 0x33 2M 4M",
            "aio_write -P 0x44 8M 64k",
            "aio_flush",
            "read -P 0x11 0 1M",
            "read -P 0x22 1M 512",
            "read -P 0x33 2M 4M",
            "read -P 0x44 8M 64k",
            "write -z 2M 2M",
            "write -z -u 4M 1M",
            "read -P 0 2M 3M",
            "read -P 0x33 5M 1M",
            "discard 8M 64k",
            "write -P 0x55 100 1000",
            "read -P 0x55 100 1000",
            "read -P 0x11 0 100",
            "flush",
        ];
        commands.iter().for_each(|c| args.extend(["-c", c]));
        args.push(&uri);
        let Some(out) = tool("qemu-io", &args, folder.path()) else {
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            !text.contains("Pattern verification failed") && !text.contains("failed:"),
            "{name}: {text}"
        );
    }
}

#[test]
fn fio_verifies() {
    let folder = tempfile::tempdir().unwrap();
    for (name, s) in servers() {
        let uri = format!("--uri={}", s.server().uri());
        for (bs, depth, jobs) in [
            ("32k", "64", 4),
            ("512", "4", 1),
            ("512", "1", 1),
            ("4k-256k", "16", 2),
        ] {
            let span = format!("{}", (64 << 20) / jobs);
            let io = if bs == "512" {
                2 << 20
            } else {
                (32 << 20) / jobs
            };
            let args = [
                "--name=j",
                "--ioengine=nbd",
                &uri,
                "--rw=randrw",
                if bs.contains('-') {
                    "--blocksize_unaligned=0"
                } else {
                    "--thread=0"
                },
                &format!("--{}={bs}", if bs.contains('-') { "bsrange" } else { "bs" }),
                &format!("--iodepth={depth}"),
                &format!("--numjobs={jobs}"),
                &format!("--size={span}"),
                &format!("--offset_increment={span}"),
                &format!("--io_size={io}"),
                "--verify=sha512",
                "--verify_fatal=1",
                "--do_verify=1",
            ];
            let Some(out) = tool("fio", &args, folder.path()) else {
                return;
            };
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(text.contains("err= 0"), "{name} {bs}: {text}");
        }
    }
}

/// nbdkit as a client of ours, serving what it finds: its nbd plugin passes every command on.
#[test]
fn nbdkit_passes_on() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    std::fs::write(dir.join("in"), pattern(23, 8 << 20)).unwrap();
    for (_, s) in servers() {
        let uri = format!("uri={}", s.server().uri());
        let run = "nbdcopy in \"$uri\" && nbdcopy \"$uri\" out && head -c 8388608 out | cmp - in";
        if Command::new("nbdcopy").arg("--version").output().is_err() {
            println!("skipped: nbdcopy is not installed");
            return;
        }
        if tool("nbdkit", &["-U", "-", "nbd", &uri, "--run", run], dir).is_none() {
            return;
        }
    }
}
