//! Which callers read the trace of an error: it shows paths and lines of source code.

/// Which callers get the trace of an error of user code, such as a traceback of Python. The log always has it.
///
/// ```
/// use callboard_core::edge::ErrorTraces;
///
/// assert!(ErrorTraces::Loopback.are_sent(true) && !ErrorTraces::Loopback.are_sent(false));
/// assert!(ErrorTraces::Callers.are_sent(false) && !ErrorTraces::Log.are_sent(true));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorTraces {
    /// Callers of a listener that only this machine can reach: a developer. The default. A proxy on the machine passes
    /// them on.
    #[default]
    Loopback,
    /// All callers.
    Callers,
    /// No caller.
    Log,
}

impl ErrorTraces {
    /// Whether callers of a listener get traces, if only this machine can reach the listener or if others can.
    #[must_use]
    pub fn are_sent(self, is_loopback: bool) -> bool {
        match self {
            Self::Loopback => is_loopback,
            Self::Callers => true,
            Self::Log => false,
        }
    }
}
