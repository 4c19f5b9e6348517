//! Fault runs.
use crate::sim::Sim;
pub(crate) struct Plan;
impl Sim {
    pub(crate) fn fault_act(&mut self, _i: u32) {}
}
