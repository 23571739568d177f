//! `completions` and `man`: the script works in a real shell, and the page renders.

use std::fs;
use std::process::Command;

use crate::support::{callboard, directory, failure, run};

/// The completions of bash for these words, the last of which is incomplete.
fn completed(words: &[&str]) -> String {
    let file = directory().join("callboard.bash");
    let output = run(&["completions", "bash"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    fs::write(&file, output.stdout).unwrap();
    let (typed, count) = (words.join(" "), words.len());
    let last_word = words.last().unwrap();
    let script = format!(
        "source '{}' && COMP_WORDS=(callboard {typed}) COMP_CWORD={count} && _callboard callboard '{last_word}' '' && \
         echo \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let output = Command::new("bash").args(["--norc", "-c", &script]).output().expect("bash");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn bash_completes_a_command_a_flag_and_a_value() {
    assert_eq!(completed(&["ser"]), "serve");
    assert_eq!(completed(&["serve", "--dra"]), "--drain --drain-delay");
    // Arguments that exist only for a helpful refusal are not offered.
    assert_eq!(completed(&["serve", "--por"]), "");
    assert_eq!(completed(&["completions", "z"]), "zsh");
}

#[test]
fn every_shell_has_a_script() {
    for (shell, start) in [("zsh", "#compdef callboard"), ("fish", "# Print"), ("powershell", "\nusing namespace")] {
        let output = run(&["completions", shell]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.starts_with(start), "{shell}: {text}");
        assert!(text.contains("log-format"), "{shell}");
    }
    let (line, code) = failure(callboard(["completions", "cmd"]));
    assert_eq!(code, 2);
    assert!(line.ends_with("possible values: bash, elvish, fish, powershell, zsh"), "{line}");
}

#[test]
fn the_manual_has_a_page_for_the_program_and_for_each_command() {
    for (words, title, option) in
        [(&["man"][..], "CALLBOARD", "callboard\\-serve"), (&["man", "serve"], "CALLBOARD-SERVE", "\\-\\-drain")]
    {
        let output = run(words);
        let page = String::from_utf8(output.stdout).unwrap();
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", option] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let heading = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(heading.to_uppercase().contains(title), "{heading}");
        render(&page, words);
    }
    let (line, code) = failure(callboard(["man", "sevre"]));
    assert!(code == 2 && line.contains("`sevre` is not a command; known: serve, check, "), "{line}");
}

/// Renders with `man`, if installed.
fn render(page: &str, words: &[&str]) {
    let file = directory().join("callboard.1");
    fs::write(&file, page).unwrap();
    let Ok(output) = Command::new("man").args(["--warnings", "-l"]).arg(&file).env("MANPAGER", "cat").output() else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A system without manual pages has a `man` that prints a notice.
    if text.contains("SYNOPSIS") {
        assert!(text.contains(if words.len() > 1 { "--drain" } else { "callboard-serve" }), "{text}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}
