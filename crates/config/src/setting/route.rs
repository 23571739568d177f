//! The settings of one route. In the file they are next to its `path`.

use callboard_core::{Priority, Task};

use super::super::form::{Flag, HeaderNames, Methods, ModelNames, OneOf, Optional, QueryNames};
use super::{Bytes, Count, DEFAULT_TIMEOUT, Duration, HOUR, Span};

pub(crate) const MAX_IN_FLIGHT: &str = "max_in_flight";
pub(crate) const TIMEOUT: &str = "timeout";
pub(crate) const MAX_TIMEOUT: &str = "max_timeout";
pub(crate) const PRIORITY: &str = "priority";
pub(crate) const MAX_BODY_BYTES: &str = "max_body_bytes";
pub(crate) const HEADERS: &str = "headers";
pub(crate) const QUERY: &str = "query";
pub(crate) const METHODS: &str = "methods";
pub(crate) const OPENAI: &str = "openai";
pub(crate) const ALIASES: &str = "aliases";
pub(crate) const MCP: &str = "mcp";

pub(crate) static MAX_IN_FLIGHT_FORM: Optional<Count> = Optional(Count(1..=1_000_000));
pub(crate) static MAX_TIMEOUT_FORM: Optional<Span> = Optional(Span(Duration::from_millis(1)..=HOUR));
pub(crate) static PRIORITY_FORM: OneOf<Priority> =
    OneOf(&[("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)]);

pub(crate) static HEADERS_FORM: HeaderNames = HeaderNames;
pub(crate) static QUERY_FORM: QueryNames = QueryNames;
pub(crate) static METHODS_FORM: Methods = Methods;
pub(crate) static MCP_FORM: Flag = Flag;
pub(crate) static ALIASES_FORM: ModelNames = ModelNames;
pub(crate) static OPENAI_FORM: Optional<OneOf<Task>> = Optional(OneOf(&TASKS));

const TASKS: [(&str, Task); Task::ALL.len()] = {
    let mut words = [("", Task::Chat); Task::ALL.len()];
    let mut index = 0;
    while index < words.len() {
        words[index] = (Task::ALL[index].as_str(), Task::ALL[index]);
        index += 1;
    }
    words
};

/// The limit of all bodies, for one route.
pub(crate) fn max_body_bytes_form() -> &'static Bytes {
    &super::MAX_BODY_BYTES.form
}

/// The range of the timeout, as for all routes.
pub(crate) fn timeout_form() -> &'static Span {
    &DEFAULT_TIMEOUT.form
}
