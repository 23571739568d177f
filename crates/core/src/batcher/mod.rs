//! The batcher: one for the replicas of a stage on a node. It keeps the queue and forms batches, of one stage each
//! where the replicas run several. A call that finds nothing to wait for passes it by.
//!
//! Work-conserving: a free worker and a waiting entry mean a batch now, unless the policy waits; batches grow while
//! workers are busy. A batch is formed at the moment a worker takes it, so priorities, deadlines and cancellations count
//! until the last instant.
//!
//! * **Full:** an entry takes its permit before it is sent, so the mailbox is bounded by the queue.
//! * **Late:** an entry that cannot make its deadline is refused when it arrives, by the measured cost. Else
//!   the caller's own timer answers `DeadlineExceeded`; the entry is dropped from the queue, never executed.
//! * **Cancelled:** the caller's guard tells the batcher, which drops the entry and counts it.

mod actor;
mod hosted;

pub(crate) use actor::BatcherActor;
