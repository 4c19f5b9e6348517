//! Builds the shims for the C and C++ pools that are installed. What is not there is left out; the program then prints
//! `not installed` for that pool. Nothing is downloaded.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(onetbb)");
    println!("cargo::rustc-check-cfg=cfg(libdispatch)");
    println!("cargo::rerun-if-changed=native");
    println!("cargo::rerun-if-changed=build.rs");
    // oneTBB and libdispatch may be installed later: look again when these appear.
    println!("cargo::rerun-if-changed=/usr/include/tbb/task_arena.h");
    println!("cargo::rerun-if-changed=/usr/include/dispatch/dispatch.h");
    shim("onetbb", "native/onetbb.cpp", true, "tbb");
    shim("libdispatch", "native/libdispatch.c", false, "dispatch");
}

/// Builds one shim and sets `cfg(name)` when the shim compiles and the library links.
fn shim(name: &str, source: &str, cpp: bool, library: &str) {
    let mut build = cc::Build::new();
    build
        .cpp(cpp)
        .opt_level(2)
        .warnings(true)
        .cargo_warnings(false)
        .cargo_metadata(false)
        .file(source);
    if cpp {
        build.std("c++17");
    }
    if links(&build, source, library) && build.try_compile(name).is_ok() {
        let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
        println!("cargo::rustc-link-search=native={out}");
        println!("cargo::rustc-link-lib=static={name}");
        println!("cargo::rustc-link-lib=dylib={library}");
        if cpp {
            println!("cargo::rustc-link-lib=dylib=stdc++");
        }
        println!("cargo::rustc-cfg={name}");
    }
}

/// Whether a shared object of the shim and the library can be linked with nothing undefined.
fn links(build: &cc::Build, source: &str, library: &str) -> bool {
    let Ok(compiler) = build.try_get_compiler() else {
        return false;
    };
    let probe = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("probe.so");
    let mut command: Command = compiler.to_command();
    command
        .args(["-shared", "-fPIC", "-Wl,--no-undefined", source, "-o"])
        .arg(probe)
        .arg(format!("-l{library}"));
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
