//! Telling the architecture.

use super::Files;
use crate::machine::Arch;
use crate::raw::RawMachine;
use std::path::Path;

/// `cpuinfo` repeats itself for every CPU; the first blocks say enough.
const HEAD: usize = 64 * 1024;

pub(super) fn read(files: &mut Files, root: &Path) -> Arch {
    let from_cpuinfo = files.head("proc/cpuinfo", HEAD).good().and_then(of_cpuinfo);
    if let Some(arch) = from_cpuinfo {
        return arch;
    }
    let machine = files.text("proc/sys/kernel/arch").good().map(of_machine);
    match machine {
        Some(arch) if arch != Arch::Other => arch,
        _ if root == Path::new("/") => of_machine(std::env::consts::ARCH),
        _ => Arch::Other,
    }
}

fn of_cpuinfo(text: &str) -> Option<Arch> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim();
        match key.trim() {
            "vendor_id" if value.contains("IBM/S390") => Some(Arch::S390),
            "vendor_id" if matches!(value, "AuthenticAMD" | "HygonGenuine") => Some(Arch::X86Amd),
            "vendor_id" => Some(Arch::X86),
            "CPU implementer" => Some(Arch::Arm),
            "isa" | "mvendorid" => Some(Arch::RiscV),
            "cpu" if value.starts_with("POWER") => Some(Arch::Power),
            _ => None,
        }
    })
}

/// After a name as in `uname -m` or the compiler's.
fn of_machine(name: &str) -> Arch {
    match name {
        "x86_64" | "x86" | "i686" | "i586" | "i386" => Arch::X86,
        "s390x" | "s390" => Arch::S390,
        _ if name.starts_with("arm") || name.starts_with("aarch64") => Arch::Arm,
        _ if name.starts_with("riscv") => Arch::RiscV,
        _ if name.starts_with("ppc") || name.starts_with("powerpc") => Arch::Power,
        _ => Arch::Other,
    }
}

/// Without `cpuinfo`: a kernel that tells CPU capacities but no dies is one for Arm or RISC-V,
/// which group caches alike (x86 kernels that tell capacities tell dies as well).
pub(super) fn guess(raw: &RawMachine) -> Arch {
    let mut cpus = raw.cpus.iter();
    let no_die = raw
        .cpus
        .iter()
        .all(|cpu| cpu.die_id.is_none_or(|id| id < 0));
    match cpus.any(|cpu| cpu.capacity.is_some()) && no_die {
        true => Arch::Arm,
        false => Arch::Other,
    }
}
