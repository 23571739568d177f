//! `callboard completions` and `callboard man`: the grammar of the command line as a script for a shell, and as manual
//! pages.

use std::io;

use clap::Command;
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

/// Prints the script.
pub(crate) fn completions(mut program: Command, name: &str, shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    output::result(String::from_utf8_lossy(&script).trim_end())
}

/// Prints the page of the program or of one of its commands.
pub(crate) fn man(program: Command, name: &str, of: Option<&str>) -> Result<(), CliError> {
    let mut program = program.name(name.to_owned()).bin_name(name);
    // This gives the commands their full names.
    program.build();
    let page = match of {
        None => page(program),
        Some(of) => match program.find_subcommand(of) {
            Some(command) => page(command.clone()),
            None => {
                let known: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
                return Err(CliError::Usage(format!("`{of}` is not a command; known: {}", known.join(", "))));
            }
        },
    };
    let page = page.map_err(|error| CliError::because("the manual page", &error))?;
    output::result(String::from_utf8_lossy(&page).trim_end())
}

fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
