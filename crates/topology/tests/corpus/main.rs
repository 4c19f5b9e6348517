//! Real machines and what a running kernel made of them. `CMWQ_TOPOLOGIES` names the folder of all
//! of them; without it the machines of `tests/data` are taken.

mod pods;
mod queues;
mod support;
