//! An error of clap, on one line.

use std::borrow::Cow;

use callboard_http_client::without_credentials;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::OF_UNKNOWN;

/// The error and its hint. `None` for help and version, which are no errors.
pub(crate) fn complaint(error: &clap::Error) -> Option<String> {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        return None;
    }
    let text = without_typed_credentials(error);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut complaint =
        lines.next().unwrap_or_default().trim_start_matches("error: ").replace(&format!(" [<{OF_UNKNOWN}>]"), "");
    if complaint.ends_with(':') {
        // A list follows, such as the missing arguments.
        let is_list = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("tip: ");
        let missing: Vec<&str> = lines.clone().take_while(is_list).collect();
        complaint = format!("{complaint} {}", missing.join(", "));
    }
    // The hint how to pass a flag as a value does not help with a mistyped flag.
    let tip = lines.clone().filter_map(|line| line.strip_prefix("tip: ")).find(|tip| !tip.starts_with("to pass"));
    let choices = lines.find_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    let help = "--help lists what there is";
    let serve = means_serve(error).then_some("`callboard serve FILE` serves a file");
    Some(format!("{complaint}; {}", serve.or(tip).or(choices).unwrap_or(help)))
}

/// Whether an unknown command is a file, or the word of another server for `serve`.
fn means_serve(error: &clap::Error) -> bool {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return false };
    ["deploy", "dev", "run", "start", "up"].contains(&word.as_str()) || word.contains(['.', ':'])
}

/// The text of clap, in which words of the command line have no credentials.
fn without_typed_credentials(error: &clap::Error) -> String {
    let typed = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(word) => std::slice::from_ref(word),
        ContextValue::Strings(words) => words,
        _ => &[],
    });
    typed.fold(error.render().to_string(), |text, word| match without_credentials(word) {
        Cow::Borrowed(shown) if shown == word => text,
        shown => text.replace(&**word, &shown),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::parse;
    use crate::program::Program;

    fn complaint_of(line: &str) -> Option<String> {
        let args = line.split_whitespace().map(OsString::from);
        complaint(&parse(Program::Callboard, args).unwrap_err())
    }

    #[test]
    fn an_error_of_the_arguments_is_one_line_with_a_hint() {
        for (line, expected) in [
            ("serve --drian 1s", "unexpected argument '--drian' found; a similar argument exists: '--drain'"),
            ("serve --zzz", "unexpected argument '--zzz' found; --help lists what there is"),
            ("call", "the following required arguments were not provided: <URL>, <ROUTE>; --help lists what there is"),
            (
                "examples --lang js",
                "invalid value 'js' for '--lang <LANGUAGE>'; possible values: curl, python, rust, openai, grpc, mcp",
            ),
            (
                "serve --drain",
                "a value is required for '--drain <DURATION>' but none was supplied; --help lists what there is",
            ),
        ] {
            assert_eq!(complaint_of(&format!("callboard {line}")).as_deref(), Some(expected));
        }
        assert_eq!(complaint_of("callboard --help"), None);
    }

    #[test]
    fn a_file_or_the_word_of_another_server_in_the_place_of_a_command_gets_a_hint() {
        for line in ["app.py", "app:Service", "run app.py", "dev", "start models/"] {
            let complaint = complaint_of(&format!("callboard {line}")).unwrap();
            assert!(complaint.ends_with("'; `callboard serve FILE` serves a file"), "{complaint}");
        }
        let complaint = complaint_of("callboard stauts").unwrap();
        assert!(complaint.ends_with("a similar subcommand exists: 'status'"), "{complaint}");
    }

    #[test]
    fn credentials_in_a_word_are_not_shown() {
        for line in [
            "call https://me:hunter2@host:port/ /a",
            "status http://me:hunter2@",
            "bench ftp://me:hunter2@host /a",
            "mcp --url=https://me:hunter2@host:port",
            "status --https://me:hunter2@host",
        ] {
            let complaint = complaint_of(&format!("callboard {line}")).unwrap();
            assert!(!complaint.contains("hunter2") && complaint.contains('…'), "{complaint}");
        }
    }

    #[test]
    fn an_address_flag_of_another_server_gets_a_hint() {
        for line in ["serve --port 80", "serve --port=80", "serve x --host", "check --bind 0.0.0.0", "serve --addr :80"]
        {
            let complaint = complaint_of(&format!("callboard {line}")).unwrap();
            assert!(complaint.ends_with("' found; `--http 127.0.0.1:8000` sets address and port"), "{complaint}");
            assert!(!complaint.contains(OF_UNKNOWN), "{complaint}");
        }
        for line in ["serve app.py --workers 4", "serve --replicas=2", "check --num-replicas"] {
            let complaint = complaint_of(&format!("callboard {line}")).unwrap();
            assert!(complaint.ends_with("' found; `replicas` of each service or stage is their number"), "{complaint}");
        }
    }
}
