//! Supervision: who is started, who is restarted, and when to stop trying.
//!
//! ```text
//! node
//! ├── gateway            admission, ledger, drain
//! ├── router             the table of routes
//! └── deployment (one per stage)
//!     ├── batcher        the queue
//!     └── worker …       one per replica: user code lives here and may die here
//! ```
//!
//! Precious state is near the root, dangerous work in the leaves. A crash ends one replica. A replica that had
//! completed a batch is started again at once; one that dies before its first batch twice in a row is in a crash
//! *loop*: it waits longer, and after [`RestartIntensity`](crate::RestartIntensity) is exceeded its stage is `Failed`,
//! which its routes and the readiness answer tell. The other stages serve on.

mod deployment;
mod early_deaths;
mod message;

pub(crate) use deployment::{DeploymentActor, DeploymentArgs};
pub(crate) use early_deaths::{EarlyDeath, EarlyDeaths};
pub(crate) use message::{DeploymentMessage, ScaleError};
