//! What comes out of `bench crypt`, and that wrong bytes are an error and never a number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use clap::Parser as _;
use cmwq_crypt::device::Device;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(text: &str) -> Args {
    Command::parse_from(text.split_whitespace()).args
}

/// A device that does something wrong at one read, counted from 0 once all blocks are there.
struct Faulty {
    inner: FileDevice,
    reads: AtomicU64,
    at: u64,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    FlipBit,
    Error,
}

impl Device for Faulty {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)?;
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.at {
            match self.how {
                How::FlipBit => buf[buf.len() / 2] ^= 1,
                How::Error => return Err(io::Error::other("the disk is tired")),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8], durable: bool) -> io::Result<()> {
        self.inner.write_at(offset, buf, durable)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.trim(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep_space: bool) -> io::Result<()> {
        self.inner.write_zeroes(offset, len, keep_space)
    }
}

fn faulty(scenario: &str, how: How) -> (Document, String, Vec<String>) {
    let args = args(&format!(
        "x --scenario {scenario} --scopes system,default,thread --rounds 2 --runtime 0.03"
    ));
    let host = Host::new(None).unwrap();
    let scenarios = Scenario::choose(&args.scenario, &host.usable, Some(1));
    let device = Faulty {
        inner: FileDevice::memory(scenarios[0].device_bytes()).unwrap(),
        reads: AtomicU64::new(0),
        at: 3,
        how,
    };
    let cipher =
        SectorCipher::new(Key::generate().unwrap(), SectorSize::B512, IvUnit::B512).unwrap();
    let volume = Arc::new(Volume::encrypted(Arc::new(device), cipher));
    let mut text = String::new();
    let mut show = |t: &str| {
        text.push_str(t);
        Ok(())
    };
    let (document, failures) = args
        .measure_on(&host, &scenarios, vec![volume], &mut show)
        .unwrap();
    (document, text, failures)
}

#[test]
fn a_corrupted_read_is_an_error_and_not_a_number() {
    for scenario in ["high", "llow", "sync"] {
        let (document, text, failures) = faulty(scenario, How::FlipBit);
        assert_eq!(failures.len(), 1, "{scenario}: {failures:?}");
        assert!(failures[0].contains("SHA-512 differs"), "{failures:?}");
        let bad: Vec<_> = document.rows.iter().filter(|r| r.error.is_some()).collect();
        assert_eq!(bad.len(), 1, "{scenario}");
        assert!(bad[0].bandwidth_mib_s.is_none() && bad[0].latency_us.is_none());
        assert!(bad[0].figures.is_empty() && bad[0].cpu_util_percent.is_none());
        assert!(text.contains("SHA-512 differs"), "{text}");
        // The other settings, and the next round, went on with the device filled anew.
        let good = document.rows.iter().filter(|r| r.bandwidth_mib_s.is_some());
        assert_eq!(good.count(), 2, "{scenario}");
        document.to_json().unwrap();
    }
}

#[test]
fn a_failing_device_is_an_error_with_its_text() {
    for scenario in ["high", "sync"] {
        let (_, _, failures) = faulty(scenario, How::Error);
        assert_eq!(failures.len(), 1, "{scenario}: {failures:?}");
        assert!(failures[0].contains("the disk is tired"), "{failures:?}");
    }
}

#[test]
fn all_scenarios_and_settings_give_rows_in_the_common_form() {
    let args = args("x --rounds 1 --runtime 0.03 --jobs 2");
    let host = Host::new(None).unwrap();
    let mut text = String::new();
    let mut show = |t: &str| {
        text.push_str(t);
        Ok(())
    };
    let (document, failures) = args.measure(&host, &mut show).unwrap();
    assert_eq!(failures, [""; 0]);
    let json: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
    assert_eq!(cmwq_measure::validate(&json), []);
    // Ten settings, and inline running in the two scenarios that wait for one request.
    assert_eq!(document.rows.len(), 6 * 10 + 2);
    for row in &document.rows {
        assert!(row.bandwidth_mib_s.unwrap().mean > 0.0, "{row:?}");
        assert!(row.latency_us.unwrap().count.unwrap() > 0, "{row:?}");
        assert!(row.vs_system_percent.is_some() && row.cpu_util_percent.is_some());
        assert!(text.contains(&row.setting), "{text}");
    }
    for (scenario, setting) in [("high", "cpu-strict"), ("think", "default-inline")] {
        assert!(document.rows_of(scenario).any(|r| r.setting == setting));
    }
}

#[test]
fn bad_arguments_say_what_was_expected() {
    for (text, expected) in [
        ("x --scopes cahce", "cache-shard"),
        ("x --runtime 0", "more than 0"),
        ("x --runtime nan", "more than 0"),
        ("x --rounds 0", "1"),
        ("x --jobs 0", "1..=4096"),
        ("x --scenario huge", "llow"),
    ] {
        let Err(e) = Command::try_parse_from(text.split_whitespace()) else {
            panic!("{text} was taken");
        };
        assert!(e.to_string().contains(expected), "{text}: {e}");
    }
    let wrong = args("x --synthetic package:64");
    let e = format!("{:#}", wrong.run().unwrap_err());
    assert!(e.contains("the same ones"), "{e}");
}
