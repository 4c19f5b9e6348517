//! What a real kernel (6.12) answered to good and bad values, row by row. Every deliberate difference is listed here with
//! its reason; anything else must agree, down to the errno.

use cmwq_control::attr::{Attr, Level, ParseContext, Setting, format_bool};

/// The kernel takes the start of the text and ignores the rest, folds case, or wraps around: accidents that are errors here.
const KERNEL_ACCIDENTS: &[(&str, &str)] = &[
    ("affinity_scope", "CPU\n"),
    ("affinity_scope", "Cache\n"),
    ("affinity_scope", "cache \n"),
    ("affinity_scope", "cachex\n"),
    ("affinity_scope", "cache numa\n"),
    ("affinity_scope", "cpu,smt\n"),
    ("affinity_scope", "default (cache)\n"),
    ("affinity_scope", "numa\u{0}"),
    ("affinity_scope", "numa\n\n"),
    ("affinity_strict", "2\n"),
    ("affinity_strict", "-1\n"),
    ("affinity_strict", "100\n"),
    ("affinity_strict", "0x1\n"),
    ("affinity_strict", "1 1\n"),
    ("affinity_strict", " 1\n"),
    ("affinity_strict", "1.5\n"),
    ("affinity_strict", "99999999999\n"),
    ("max_active", "4294967297\n"),
    ("max_active", "99999999999999999999\n"),
    ("max_active", " 7\n"),
    ("max_active", "8 9\n"),
    ("max_active", "3x\n"),
    ("nice", "0x5\n"),
    ("nice", "5 6\n"),
    ("nice", "3x\n"),
    // An empty mask is written as 0; an empty text is more likely a mistake in a script.
    ("cpumask", "\n"),
    ("cpumask", "3,\n"),
    ("cpumask", " 3\n"),
    ("default_affinity_scope", "CPU\n"),
    ("default_affinity_scope", "cache x\n"),
    ("default_affinity_scope", "cachex\n"),
];

/// Accepted here and not by that kernel.
const ACCEPTED_HERE: &[(&str, &str)] = &[
    // The list form.
    ("cpumask", "1-3\n"),
    ("cpumask", "0-3\n"),
    // Leading zero groups change nothing.
    ("cpumask", "00000000,00000003\n"),
];

/// Refused by both, with another kind.
const OTHER_ERRNO: &[(&str, &str)] = &[
    // Not a mask at all, whatever its length.
    ("cpumask", "3 4\n"),
];

#[test]
fn rows_of_a_real_kernel() {
    let Some(dir) = std::env::var_os("CMWQ_TOPOLOGIES") else {
        println!(
            "skipped: CMWQ_TOPOLOGIES does not name the folder with kernel-control-interface.json"
        );
        return;
    };
    let path = std::path::Path::new(&dir).join("kernel-control-interface.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} cannot be read", path.display());
        return;
    };
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let context = ParseContext { nr_cpu_ids: 8 };
    let mut compared = 0;
    for row in file["rows"].as_array().unwrap() {
        let (file, write, result, after) = (
            row["file"].as_str().unwrap(),
            row["write"].as_str().unwrap(),
            row["result"].as_str().unwrap(),
            row["after"].as_str().unwrap(),
        );
        if row["note"]
            .as_str()
            .is_some_and(|note| note.starts_with("no write"))
        {
            continue;
        }
        let write = match row["write_repeat"].as_array() {
            Some(repeat) => repeat[0]
                .as_str()
                .unwrap()
                .repeat(repeat[1].as_u64().unwrap() as usize),
            None => write.to_owned(),
        };
        let name = file.rsplit('/').next().unwrap();
        let level = if file.starts_with("writeback/") {
            Level::Workqueue
        } else {
            Level::Global
        };
        let attr = Attr::find(name, level).unwrap();
        let ours = Setting::parse(attr, &write, &context);
        let key = (name, write.as_str());
        compared += 1;
        match (&ours, result) {
            (Ok(_), "ok") if write == "cache_shard\n" => {
                // That kernel knew no cache_shard and took it for `cache`.
            }
            (Ok(parsed), "ok") => {
                let shown = shown(&parsed.setting);
                let clamped = parsed.note.is_some() || after == "512";
                assert!(
                    clamped || shown == after,
                    "{file} {write:?}: {shown:?}, the kernel shows {after:?}"
                );
            }
            (Err(e), "ok") => assert!(KERNEL_ACCIDENTS.contains(&key), "{file} {write:?}: {e}"),
            (Ok(_), errno) => assert!(
                ACCEPTED_HERE.contains(&key),
                "{file} {write:?}: the kernel says {errno}"
            ),
            (Err(e), errno) if e.kind.errno_name() == errno => assert!(!e.message.is_empty()),
            (Err(e), errno) => assert!(
                OTHER_ERRNO.contains(&key),
                "{file} {write:?}: {e}, the kernel says {errno}"
            ),
        }
    }
    assert!(compared > 120, "{compared}");
}

/// As the kernel shows the value on 8 CPUs.
fn shown(setting: &Setting) -> String {
    match setting {
        Setting::MaxActive(n) => n.to_string(),
        Setting::Nice(n) => n.to_string(),
        Setting::Cpumask(mask) | Setting::GlobalCpumask(mask) => mask.mask().width(8).to_string(),
        Setting::AffinityScope(scope) if scope.name() == "default" => "default (cache)".into(),
        Setting::AffinityScope(scope) | Setting::DefaultAffinityScope(scope) => scope.name().into(),
        Setting::AffinityStrict(on) => format_bool(Attr::AffinityStrict, *on).into(),
        Setting::DebugForceRrCpu(on) => format_bool(Attr::DebugForceRrCpu, *on).into(),
        Setting::CpuIntensiveThreshUs(us) => us.to_string(),
        other => panic!("not in the rows: {other:?}"),
    }
}
