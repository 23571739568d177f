//! `callboard init`: writes a small project in Python that serves and tests itself.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::CliError;
use crate::output;

/// The files of a project; `NAME` stands for its name.
const FILES: [(&str, &str); 5] = [
    ("app.py", include_str!("project/app.py")),
    ("test_app.py", include_str!("project/test_app.py")),
    ("requirements.txt", include_str!("project/requirements.txt")),
    ("README.md", include_str!("project/README.md")),
    (".gitignore", include_str!("project/gitignore")),
];

/// Writes the project.
///
/// # Errors
///
/// If the directory has files, or cannot be written.
pub(crate) fn run(directory: &Path) -> Result<(), CliError> {
    let place = directory.display();
    let failed = |error: io::Error| CliError::because(place.to_string(), &error);
    fs::create_dir_all(directory).map_err(failed)?;
    if fs::read_dir(directory).map_err(failed)?.next().is_some() {
        return Err(CliError::Usage(format!("{place}: the directory is not empty; name a new one")));
    }
    let whole = directory.canonicalize().map_err(failed)?;
    let name = whole.file_name().map_or_else(|| "app".into(), |name| name.to_string_lossy());
    // It stands in Python's texts and comments.
    if !name.chars().all(|c| c.is_alphanumeric() || "-_. ".contains(c)) {
        let rule = "a project's name has letters, digits, spaces and -_. only";
        return Err(CliError::Usage(format!("{place}: {rule}")));
    }
    for (file, text) in FILES {
        fs::write(directory.join(file), text.replace("NAME", &name)).map_err(failed)?;
    }
    output::result(format_args!(
        "{place}: a service, its test and a README\n\n    cd {place}\n    pip install PATH/TO/callboard/python -r requirements.txt\n    \
         python -m pytest\n    callboard serve app.py"
    ))
}
