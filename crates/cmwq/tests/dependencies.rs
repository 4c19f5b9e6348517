//! What the library pulls in: little, and nothing for features that are off.

use std::collections::BTreeSet;
use std::process::Command;

/// Names of the packages that a build of the library links, with these features; `None` where cargo cannot say.
fn tree(features: &str) -> Option<BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO")?;
    let out = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--locked",
            "-p",
            "cmwq",
            "-e",
            "normal,no-proc-macro",
        ])
        .args([
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--features",
            features,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    if !out.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&out.stderr).trim());
        return None;
    }
    let text = String::from_utf8(out.stdout).ok()?;
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    Some(text.lines().filter_map(name).collect())
}

#[test]
fn the_library_alone_has_a_tiny_tree() {
    let Some(names) = tree("") else {
        println!("skipped: no cargo that can list the dependencies");
        return;
    };
    let known = [
        "arc-swap",
        "bitflags",
        "cmwq",
        "cmwq-control",
        "cmwq-policy",
        "cmwq-topology",
        "crossbeam-utils",
        "errno",
        "libc",
        "linux-raw-sys",
        "rustix",
    ];
    for name in &names {
        assert!(known.contains(&name.as_str()), "{name} is new in {names:?}");
    }
    assert!(names.contains("cmwq-policy"), "{names:?}");
}

/// `tracing` is linked with its feature and not at all without it.
#[test]
fn tracing_is_there_only_with_its_feature() {
    let (Some(without), Some(with)) = (tree("control"), tree("tracing")) else {
        println!("skipped: no cargo that can list the dependencies");
        return;
    };
    let has = |names: &BTreeSet<String>| names.iter().any(|n| n.starts_with("tracing"));
    assert!(!has(&without), "{without:?}");
    assert!(has(&with), "{with:?}");
}
