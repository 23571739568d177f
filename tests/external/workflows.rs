//! The workflows that make a release, which run elsewhere: they fit their schema, and zizmor finds nothing in them.

use std::path::Path;
use std::process::Command;

use crate::process::run;
use crate::python::Python;

#[test]
fn the_workflows_are_valid_and_safe() {
    let Some(python) = Python::with("workflows") else { return };
    let workflows = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let files = ["release.yml", "publish.yml"].map(|name| workflows.join(name));
    let checks: [&[&str]; 2] = [
        &["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
        &["zizmor", "--offline", "--no-progress", "--persona", "pedantic"],
    ];
    for check in checks {
        let (program, arguments) = check.split_first().expect("a program");
        let mut command = Command::new(python.program(program));
        run(command.args(arguments).args(&files)).unwrap_or_else(|error| panic!("{program}: {error}"));
    }
}
