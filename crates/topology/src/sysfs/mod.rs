//! Reading a tree of files: `sys/devices/system/{cpu,node}` and what tells the architecture.

mod arch;
mod cpus;
mod files;
mod nodes;

#[cfg(test)]
mod tests;

pub(crate) use files::{Files, Found};

use crate::CpuSet;
use crate::machine::{Arch, CoreKind};
use crate::raw::RawMachine;
use std::path::Path;

/// Reads what there is; never fails.
pub(crate) fn read(root: &Path) -> RawMachine {
    let mut files = Files::new(root);
    let mut raw = RawMachine::new(root.to_path_buf(), Arch::Other);
    let folders = cpus::folders(&mut files);
    cpu_sets(&mut files, &mut raw, &folders);
    raw.arch = arch::read(&mut files, root);
    cpus::read(&mut files, &mut raw, &folders);
    core_kinds(&mut files, &mut raw);
    nodes::read(&mut files, &mut raw, &folders);
    if raw.arch == Arch::Other {
        raw.arch = arch::guess(&raw);
        let text = match raw.arch {
            Arch::Other => {
                "tells no architecture that is known here: caches are grouped by the general rule"
            }
            _ => "does not tell the architecture: taken as Arm, as CPU capacities are told",
        };
        files.warnings.add(root.join("proc/cpuinfo"), text);
    }
    raw.warnings = files.warnings;
    raw
}

fn cpu_sets(files: &mut Files, raw: &mut RawMachine, folders: &CpuSet) {
    const DIR: &str = "sys/devices/system/cpu";
    let mut file = |name: &str| files.cpu_list(&format!("{DIR}/{name}"));
    let possible = file("possible");
    let present = file("present");
    let online = file("online");
    raw.isolated = file("isolated").unwrap_or_default();

    let mut missing = |name: &str, text: String| {
        files.warnings.add(files.root.join(DIR).join(name), text);
    };
    let some = |set: Option<CpuSet>| set.filter(|set| !set.is_empty());
    raw.present = some(present).unwrap_or_else(|| {
        if !folders.is_empty() {
            missing(
                "present",
                format!("missing or of no use: the folders {folders} are taken"),
            );
        }
        folders.clone()
    });
    raw.possible = some(possible).unwrap_or_else(|| {
        let set = folders | &raw.present;
        if !set.is_empty() {
            missing(
                "possible",
                format!("missing or of no use: CPUs {set} are taken"),
            );
        }
        set
    });
    let stray = folders - &raw.possible;
    if !stray.is_empty() {
        let text = format!("does not have CPUs {stray}, which have folders: left out");
        missing("possible", text);
    }
    raw.online = match some(online) {
        Some(set) => set,
        None => {
            let set: CpuSet = folders
                .iter()
                .filter(|cpu| raw.present.contains(*cpu))
                .filter(|cpu| cpus::says_online(files, *cpu))
                .collect();
            if !folders.is_empty() {
                let text = format!("missing or of no use: by the CPUs' own files {set} are online");
                files
                    .warnings
                    .add(files.root.join(DIR).join("online"), text);
            }
            set
        }
    };
}

fn core_kinds(files: &mut Files, raw: &mut RawMachine) {
    let kinds = [
        ("cpu_core", CoreKind::Performance),
        ("cpu_atom", CoreKind::Efficiency),
        ("cpu_lowpower", CoreKind::LowPower),
    ];
    for (name, kind) in kinds {
        let cpus = files.cpu_list(&format!("sys/devices/{name}/cpus"));
        for cpu in &(&cpus.unwrap_or_default() & &raw.possible) {
            raw.cpu(cpu).kind = Some(kind);
        }
    }
}
