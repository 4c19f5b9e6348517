//! Machines by name, by dump, by specification.

use crate::cost::Costs;
use crate::machine::Machine;
use cmwq_topology::Topology;
use std::path::Path;

/// The built-in machines: name, shape, costs.
///
/// The EPYC 7713 in its three NPS modes is the machine of the published CPU numbering; `grace-72` has one cache for 72
/// cores; `btrfs-96` is a 96-CPU machine with NUMA switched off.
pub const BUILT_IN: [(&str, &str, Costs); 6] = [
    (
        "ryzen-3900x",
        "l3:4 core:3 thread:2 arch=x86-amd",
        Costs::RYZEN_3900X,
    ),
    (
        "epyc-7713-nps1",
        "package:2 l3:8 core:8 thread:2 arch=x86-amd distance=10,12,32",
        Costs::EPYC_7713,
    ),
    (
        "epyc-7713-nps2",
        "package:2 node:2 l3:4 core:8 thread:2 arch=x86-amd distance=10,12,32",
        Costs::EPYC_7713,
    ),
    (
        "epyc-7713-nps4",
        "package:2 node:4 l3:2 core:8 thread:2 arch=x86-amd distance=10,12,32",
        Costs::EPYC_7713,
    ),
    ("grace-72", "l3:1 core:72 arch=arm", Costs::GRACE),
    (
        "btrfs-96",
        "node:1 package:2 l3:1 core:24 thread:2",
        Costs::EPYC_7713,
    ),
];

/// The machine that `what` names: a built-in name, a folder with a sysfs tree, an archive of one (`.tar`, `.tar.gz`,
/// `.tgz`), or a synthetic specification such as `package:2 l3:4 core:8 thread:2`.
///
/// # Errors
/// Why it is none of these.
pub fn find(what: &str) -> Result<Machine, String> {
    if let Some((name, spec, costs)) = BUILT_IN.iter().find(|m| m.0 == what) {
        let t = Topology::synthetic(spec).map_err(|e| format!("{name}: {e}"))?;
        return Ok(Machine::new(*name, t, *costs));
    }
    let path = Path::new(what);
    let name = path
        .file_name()
        .map_or_else(|| what.to_string(), |n| n.to_string_lossy().into_owned());
    if path.is_dir() {
        let archive = path.join("sysfs.tar.gz");
        if archive.is_file() {
            return from_archive(&archive, name);
        }
        if !path.join("sys/devices/system/cpu").is_dir() {
            return Err(format!("{what}: no sys/devices/system/cpu in this folder"));
        }
        return Ok(Machine::new(name, Topology::read(path), Costs::default()));
    }
    if path.is_file() {
        return from_archive(path, name);
    }
    match Topology::synthetic(what) {
        Ok(t) => Ok(Machine::new(what, t, Costs::default())),
        Err(e) => Err(format!(
            "`{what}` is no built-in machine ({}), no folder, no archive and no specification: {e}",
            BUILT_IN.map(|m| m.0).join(", ")
        )),
    }
}

fn from_archive(path: &Path, name: String) -> Result<Machine, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let dir = tempfile::tempdir().map_err(fail)?;
    let file = std::fs::File::open(path).map_err(fail)?;
    let packed = path.extension().is_some_and(|e| e == "gz" || e == "tgz");
    if packed {
        tar::Archive::new(flate2::read::GzDecoder::new(file))
            .unpack(dir.path())
            .map_err(fail)?;
    } else {
        tar::Archive::new(file).unpack(dir.path()).map_err(fail)?;
    }
    // The tree may lie one folder deep.
    let mut root = dir.path().to_path_buf();
    if !root.join("sys").is_dir() {
        let inner = std::fs::read_dir(&root)
            .map_err(fail)?
            .flatten()
            .map(|e| e.path())
            .find(|p| p.join("sys").is_dir());
        root = inner.ok_or_else(|| format!("{}: no folder `sys` in it", path.display()))?;
    }
    Ok(Machine::new(name, Topology::read(&root), Costs::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_machine_is_what_it_says() {
        let cpus: Vec<usize> = BUILT_IN
            .iter()
            .map(|m| find(m.0).unwrap().topology.online().len())
            .collect();
        assert_eq!(cpus, [24, 256, 256, 256, 72, 96]);
        let nodes: Vec<usize> = BUILT_IN
            .iter()
            .map(|m| find(m.0).unwrap().node_count())
            .collect();
        assert_eq!(nodes, [1, 2, 4, 8, 1, 1]);
        let nps4 = find("epyc-7713-nps4").unwrap();
        let numa = nps4.topology.pods(cmwq_topology::AffinityScope::Numa);
        assert_eq!(numa.get(1).unwrap().cpus.to_string(), "16-31,144-159");
    }

    #[test]
    fn what_is_no_machine_says_why() {
        let e = find("no such thing").unwrap_err();
        assert!(
            e.contains("ryzen-3900x") && e.contains("no such thing"),
            "{e}"
        );
        let e = find("/").map(|m| m.name).unwrap_or_else(|e| e);
        assert!(!e.is_empty());
    }

    #[test]
    fn an_archive_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let t = Topology::synthetic("package:2 core:4 thread:2").unwrap();
        t.write_tree(&dir.path().join("m")).unwrap();
        let tar = dir.path().join("m.tar");
        let mut b = tar::Builder::new(std::fs::File::create(&tar).unwrap());
        b.append_dir_all(".", dir.path().join("m")).unwrap();
        b.finish().unwrap();
        let m = find(tar.to_str().unwrap()).unwrap();
        assert_eq!(m.topology.online().len(), 16);
        assert_eq!(
            find(dir.path().join("m").to_str().unwrap())
                .unwrap()
                .topology
                .online()
                .len(),
            16
        );
    }
}
