//! Keeps secrets from child processes: the variables that settings read them from.

use std::ffi::OsString;

use callboard_process::withhold_variables;

use callboard_config::{Flags, Plan, SecretSource};

/// The variables that the command line and the environment name. A Python file is run to be read, before its plan.
pub(super) fn withhold_typed(flags: &Flags, variables: &[(OsString, OsString)]) {
    let typed = flags.iter().map(|(_, text)| text.as_str());
    let typed = typed.chain(variables.iter().filter_map(|(_, text)| text.to_str()));
    withhold_variables(typed.filter_map(SecretSource::variable));
}

/// The variables that any setting of the plan names.
pub(super) fn withhold(plan: &Plan) {
    withhold_variables(plan.settings.rows().iter().filter_map(|(_, text, _)| SecretSource::variable(text)));
}
