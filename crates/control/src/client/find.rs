//! Which processes are served.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

use super::{Client, ClientError};
use crate::place::{NEW_PREFIX, Place, SocketName, start_ticks};

/// The directory of control sockets.
#[derive(Debug)]
pub struct Directory {
    /// `None` if it does not exist: nobody was ever served there.
    place: Option<Place>,
}

/// A process found in the directory.
#[derive(Debug)]
pub struct Found {
    /// Its pid: as we see it where the system tells, else as it sees itself.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
    /// The conversation, opened; or why there is none.
    pub client: Result<Client, ClientError>,
}

impl Directory {
    /// Opens the directory: `explicit`, else what `CMWQ_CONTROL_DIR` names, else `cmwq` under `XDG_RUNTIME_DIR`.
    ///
    /// # Errors
    /// [`ClientError::Place`] if it is unknown or not safe.
    pub fn open(explicit: Option<&Path>) -> Result<Directory, ClientError> {
        Ok(Directory {
            place: Place::open(explicit, false)?,
        })
    }

    /// Every served process, by pid, with an open conversation. Sockets whose process is gone are removed.
    ///
    /// # Errors
    /// [`ClientError::Io`] if the directory cannot be read; what is wrong with one process is in its entry.
    pub fn list(&self) -> Result<Vec<Found>, ClientError> {
        let Some(place) = &self.place else {
            return Ok(Vec::new());
        };
        let names: Vec<String> = place
            .entries()?
            .into_iter()
            .filter(|n| !n.starts_with(NEW_PREFIX))
            .collect();
        let mut found = look_at_all(place, &names);
        found.sort_by_key(|f| f.pid);
        Ok(found)
    }

    /// The process that `who` describes: a pid, a name (whole, or the only one that begins so), or the path of a socket.
    ///
    /// # Errors
    /// [`ClientError::NoMatch`], whose text names the processes there are; any other error of the only match.
    pub fn find(&self, who: &str) -> Result<Client, ClientError> {
        if who.contains('/') {
            return Client::connect(Path::new(who));
        }
        // A pid is in the socket's name: no need to ask everybody, some of whom may be stopped.
        if let (Ok(pid), Some(place)) = (who.parse::<u32>(), &self.place) {
            let named = |n: &String| SocketName::parse(n).is_some_and(|parsed| parsed.pid == pid);
            let names: Vec<String> = place.entries()?.into_iter().filter(named).collect();
            let mut found = look_at_all(place, &names);
            if found.len() == 1 {
                return found.remove(0).client;
            }
        }
        let all = self.list()?;
        let names = |f: &Found| {
            f.client
                .as_ref()
                .map(|c| c.process().name.clone())
                .unwrap_or_default()
        };
        let described: Vec<String> = all
            .iter()
            .map(|f| match &f.client {
                Ok(client) => format!("{} ({})", f.pid, client.process().name),
                Err(e) => format!("{} ({e})", f.pid),
            })
            .collect();
        let matches: Box<dyn Fn(&Found) -> bool> = match who.parse::<u32>() {
            Ok(pid) => Box::new(move |f| {
                f.pid == pid || f.client.as_ref().is_ok_and(|c| c.process().pid == pid)
            }),
            Err(_) if all.iter().any(|f| names(f) == who) => Box::new(move |f| names(f) == who),
            Err(_) => Box::new(move |f| names(f).starts_with(who)),
        };
        let mut hits: Vec<Found> = all.into_iter().filter(|f| matches(f)).collect();
        drop(matches);
        match hits.len() {
            1 => hits.remove(0).client,
            0 if described.is_empty() => Err(ClientError::NoMatch(format!(
                "no process `{who}`: none is served{}; a program opts in with `cmwq::control::listen()`",
                self.place
                    .as_ref()
                    .map(|p| format!(" in {}", p.path().display()))
                    .unwrap_or_default()
            ))),
            0 => Err(ClientError::NoMatch(format!(
                "no process `{who}`; there are: {}",
                described.join(", ")
            ))),
            _ => {
                let pids: Vec<String> = hits.iter().map(|f| f.pid.to_string()).collect();
                Err(ClientError::NoMatch(format!(
                    "`{who}` means several processes: {}; give one pid",
                    pids.join(", ")
                )))
            }
        }
    }
}

/// Looks at several at once, so that those that do not answer cost one timeout together.
fn look_at_all(place: &Place, names: &[String]) -> Vec<Found> {
    const AT_ONCE: usize = 16;
    let mut found = Vec::new();
    for some in names.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let looks: Vec<_> = some
                .iter()
                .map(|name| scope.spawn(|| look(place, name)))
                .collect();
            // `look` does not panic; were one to, the others' answers are still good.
            found.extend(
                looks
                    .into_iter()
                    .filter_map(|look| look.join().ok().flatten()),
            );
        });
    }
    found
}

/// One entry: `None` if its process is gone (the entry is then removed).
fn look(place: &Place, name: &str) -> Option<Found> {
    let parsed = SocketName::parse(name)?;
    let path = place.path().join(name);
    // Who listens, as far as the system says.
    let peer = Cell::new(None);
    // A forked child may keep the descriptor of a dead parent's socket; connections then hang in the backlog.
    let is_gone = |pid| {
        pid == parsed.pid
            && start_ticks(parsed.pid) != Some(parsed.start_ticks)
            && Path::new("/proc/self/stat").exists()
    };
    let client = Client::open(|| {
        let fd = place.connect(name)?;
        let pid = crate::peer::of(&fd).ok().and_then(|p| p.pid);
        peer.set(pid);
        if pid.is_some_and(is_gone) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(fd)
    });
    match &client {
        Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::ConnectionRefused => {
            if place.is_own_socket(name) {
                // It may be gone already: another command cleans too.
                let _ = place.remove(name);
            }
            return None;
        }
        Err(ClientError::Io(e)) if e.kind() == io::ErrorKind::NotFound => return None,
        _ => {}
    }
    let pid = peer
        .get()
        .or_else(|| client.as_ref().ok().map(|c| c.process().pid))
        .unwrap_or(parsed.pid);
    Some(Found { pid, path, client })
}
