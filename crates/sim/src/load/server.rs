//! Servers: what does commands one after the other, in a thread of its own (dm-crypt's writer) or as one item that drains a list
//! (a loop device).

use super::{By, Server};
use crate::os::{Tid, Tstate, Want};
use crate::sim::Sim;
use crate::wq::{Item, ItemId, Phase, Role, Truth};
use cmwq_topology::CpuSet;
use std::sync::Arc;

impl Sim {
    /// A server with a thread of its own that may run on any CPU.
    pub(crate) fn add_thread_server(&mut self, ns: u64) -> u32 {
        let n = self.load.servers.len() as u32;
        let all: Arc<CpuSet> = Arc::new(self.os.m.topology.online().clone());
        let first = all.first().unwrap_or(0) as u32;
        let t = self.os.spawn(first, all, 0);
        let cpu = self.os.fork_cpu(t, first);
        self.os.threads[t as usize].cpu = cpu;
        self.roles.push(Role::Server(n));
        self.load.servers.push(Server {
            by: By::Thread(t),
            ns,
            ..Server::default()
        });
        n
    }

    /// A server that is one reusable item of this queue.
    pub(crate) fn add_item_server(&mut self, queue: u32, ns: u64) -> u32 {
        let n = self.load.servers.len() as u32;
        let item = self.wq.items.len() as ItemId;
        self.wq.items.push(Item {
            oneshot: false,
            phases: vec![Phase::Drain(n)],
            ..Item::of(queue)
        });
        // Requests and their items have the same numbers.
        self.load.requests.push(super::Request::default());
        self.load.servers.push(Server {
            by: By::Item(item),
            ns,
            touches: true,
            ..Server::default()
        });
        n
    }

    /// One more command; the server comes if it is not there.
    pub(crate) fn command(&mut self, n: u32, r: ItemId, cpu: u32) {
        let s = &mut self.load.servers[n as usize];
        s.list.push_back(r);
        match s.by {
            By::Thread(t) if self.os.threads[t as usize].state == Tstate::Sleeping => {
                self.charge += self.os.m.costs.wake_call;
                self.os.wake(t, Some(cpu), Want::Rules);
            }
            By::Item(i) if self.wq.items[i as usize].truth == Truth::Idle => {
                self.queue_item(i, cpu, false);
            }
            _ => {}
        }
    }

    /// The server has done what it was at (if it was) and takes the next command: what that costs; none if there is none.
    pub(crate) fn next_command(&mut self, n: u32, cpu: u32) -> Option<u64> {
        if let Some(r) = self.load.servers[n as usize].doing.take() {
            self.forward(r, cpu);
        }
        let s = &mut self.load.servers[n as usize];
        let r = s.list.pop_front()?;
        s.doing = Some(r);
        let (mut cost, touches) = (s.ns, s.touches);
        let it = &mut self.wq.items[r as usize];
        if touches {
            cost += self
                .os
                .m
                .costs
                .touch(self.os.m.near(it.data_cpu, cpu), it.bytes);
            it.data_cpu = cpu;
        }
        Some(cost)
    }

    /// A server's thread has done what it had to do.
    pub(crate) fn advance_server(&mut self, t: Tid, n: u32) {
        let cpu = self.os.threads[t as usize].cpu;
        self.at = cpu;
        let next = self.next_command(n, cpu);
        let charge = std::mem::take(&mut self.charge);
        match next {
            Some(ns) => self.os.burst(t, ns + charge),
            None if charge > 0 => self.os.burst(t, charge),
            None => self.os.sleep(t),
        }
    }
}
