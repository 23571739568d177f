//! The interpreter of an app, its commands, and what it is asked.

use std::collections::BTreeSet;

use super::*;
use crate::testing::Scratch;

#[test]
fn the_interpreter_is_the_nearest_that_is_there() {
    let root = std::env::temp_dir().join(format!("callboard-interpreters-{}", std::process::id()));
    let environment = |name: &str| {
        let bin = root.join(name).join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("python"), "").unwrap();
        root.join(name)
    };
    let config = PythonConfig::new("app.py");
    let base = root.join("app");
    let (active, program) = (root.join("active"), environment("installed").join("bin/callboard"));
    fs::write(&program, "").unwrap();
    let found = || config.interpreter_of(&base, Some(active.clone()), Some(&program));
    assert_eq!(found(), Path::new("python3"), "a directory like /usr/local, which is no environment");
    fs::write(root.join("installed/pyvenv.cfg"), "").unwrap();
    assert_eq!(found(), root.canonicalize().unwrap().join("installed/bin/python"));
    for name in ["app/.venv", "active"] {
        let made = environment(name);
        assert_eq!(found(), made.join("bin/python"));
    }
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn an_interpreter_that_is_set_is_a_path_from_the_file_or_a_name_that_is_looked_up() {
    let interpreter = |python: &str| {
        let config = PythonConfig { app: "app.py".to_owned(), python: Some(python.into()) };
        config.interpreter(Path::new("/srv/app"))
    };
    assert_eq!(interpreter("python3.12"), Path::new("python3.12"));
    assert_eq!(interpreter("env/bin/python"), Path::new("/srv/app/env/bin/python"));
    assert_eq!(interpreter("/usr/bin/python3"), Path::new("/usr/bin/python3"));
}

#[test]
fn the_source_of_an_app_is_what_stands_before_its_name() {
    for (app, source) in [
        ("app.py:Model", "app.py"),
        ("app.py", "app.py"),
        ("package.module:Model", "package.module"),
        ("a:b/app.py", "a:b/app.py"),
        ("a:b/app.py:Model", "a:b/app.py"),
        (r"C:\app.py", r"C:\app.py"),
    ] {
        assert_eq!(PythonConfig::new(app).source(), source);
    }
}

#[test]
fn workers_fork_servers_hooks_and_tools_of_an_app_are_started_in_its_directory() {
    let mut config = PythonConfig::new("app.py:Model");
    config.python = Some("python3".into());
    let base = Path::new("/srv/app");
    let safe = BTreeMap::from([("PYTHONSAFEPATH".to_owned(), "1".to_owned())]);
    let process = config.process(base);
    assert_eq!(process.command, ["python3", "-m", "callboard.worker", "app.py:Model"].map(OsString::from));
    let fork_server = |process: &ProcessConfig| process.fork_server.clone().map(|words| words.join(" ".as_ref()));
    assert_eq!(fork_server(&process).unwrap(), "python3 -m callboard.fork_server app.py");
    assert_eq!(
        (process.fork_target.as_deref(), process.label.as_deref()),
        (Some("app.py:Model"), Some("app.py:Model"))
    );
    assert_eq!((process.directory.as_deref(), &process.env, process.start_timeout), (Some(base), &safe, None));

    let mut service = app::tests::app().services.remove(0);
    assert_eq!(config.process_of(base, &service), process);
    service.share_setup = true;
    let shared = config.process_of(base, &service);
    assert_eq!(fork_server(&shared).unwrap(), "python3 -m callboard.fork_server app.py:Model");
    assert_eq!(shared.fork_target, None, "it is of this service alone");
    service.warm = false;
    assert_eq!(config.process_of(base, &service).fork_server, None);

    let hooks = config.hooks("hooks", base);
    assert_eq!(hooks.command, ["python3", "-m", "callboard.hooks", "app.py:Model"].map(OsString::from));
    assert_eq!((&*hooks.name, hooks.directory.as_deref(), &hooks.env), ("hooks", Some(base), &safe));
    assert_eq!(hooks.ready, Readiness::Line(HOOKS_READY.to_owned()));

    let tool = config.tool(Path::new(""), "callboard.prepare");
    assert_eq!(tool.get_program(), "python3");
    assert_eq!(tool.get_args().collect::<Vec<_>>(), ["-m", "callboard.prepare", "app.py:Model"]);
    assert_eq!(tool.get_current_dir(), Some(Path::new(".")));
    assert!(tool.get_envs().any(|variable| variable == ("PYTHONSAFEPATH".as_ref(), Some("1".as_ref()))));
}

#[test]
fn the_files_of_an_app_are_those_that_an_import_may_read() {
    let scratch = Scratch::new("python-files");
    let deepest = ["d"; MAX_LEVELS].join("/");
    let kept = ["app.py".to_owned(), "package/__init__.py".to_owned(), format!("{deepest}/last.py")];
    kept.iter().for_each(|file| drop(scratch.write(file, "")));
    scratch.write("venv/pyvenv.cfg", "");
    for other in [
        "notes.txt",
        ".hidden/a.py",
        "__pycache__/a.py",
        "node_modules/a.py",
        "venv/a.py",
        &format!("{deepest}/d/a.py"),
    ] {
        scratch.write(other, "");
    }
    let files = python_files(&scratch.0);
    assert_eq!(files.keys().cloned().collect::<BTreeSet<_>>(), kept.iter().map(|file| scratch.0.join(file)).collect());
    assert_eq!(files[&scratch.0.join("app.py")], fs::metadata(scratch.0.join("app.py")).unwrap().modified().unwrap());
    // Of a very large directory a part.
    let large = Scratch::new("many-python-files");
    for number in 0..MAX_FILES {
        fs::write(large.0.join(format!("{number}.py")), "").unwrap();
    }
    assert_eq!(python_files(&large.0).len(), MAX_FILES);
    fs::write(large.0.join("one.py"), "").unwrap();
    assert_eq!(python_files(&large.0).len(), MAX_FILES);
    let is_module = |name: &str| is_module_in(&scratch.0, name);
    assert!(is_module("app") && is_module("package") && is_module(&format!("{}.last", deepest.replace('/', "."))));
    assert!(!is_module("notes") && !is_module("package.other") && !is_module("venv"));
}

/// A pipe with these reads, then its end.
struct Interrupted(Vec<Result<&'static [u8], io::ErrorKind>>);

impl Read for Interrupted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = if self.0.is_empty() { Ok(&[][..]) } else { self.0.remove(0) }?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

/// One test, because a process keeps one answer.
#[test]
fn an_interpreter_is_asked_again_when_a_file_has_changed() {
    let scratch = Scratch::new("python-served");
    scratch.write("app.py", "");
    let script = r#"echo "$@ $PYTHONSAFEPATH" >> asked; cat answer"#;
    let mut config = PythonConfig::new("app.py:decode");
    config.python = Some(scratch.interpreter(script));
    let service = |name: &str, route: &str| {
        format!(r#"{{"target": "app.py:{name}", "route": "{route}", "input": {{}}, "output": {{}}}}"#)
    };
    let answer = |services: &[String]| {
        scratch.write("answer", &format!(r#"{{"services": [{}]}}"#, services.join(",")));
    };
    let asked = || fs::read_to_string(scratch.0.join("asked")).unwrap().lines().count();
    answer(&[service("decode", "/decode"), service("who", "@auth")]);
    let found = config.service(&scratch.0).unwrap();
    assert_eq!((&*found.target, found.auth.as_deref()), ("app.py:decode", Some("app.py:who")));
    config.app = "app.py:best".to_owned();
    let error = config.service(&scratch.0).unwrap_err().to_string();
    assert_eq!(error, "`app.py:best` is not served: there is app.py:decode, app.py:who");
    assert_eq!(asked(), 1);
    assert_eq!(fs::read_to_string(scratch.0.join("asked")).unwrap(), "-m callboard.describe app.py 1\n");
    scratch.write("other.py", "");
    answer(&[]);
    let error = config.service(&scratch.0).unwrap_err().to_string();
    assert_eq!((&*error, asked()), ("`app.py:best` is not served: nothing is", 2));

    // A module that is installed may change without a file here: what it serves is kept for some seconds.
    let mut installed = PythonConfig::new("installed.module:x");
    installed.python.clone_from(&config.python);
    for config in [&installed, &config] {
        let before = asked();
        for _ in 0..2 {
            config.served(&scratch.0).unwrap();
            assert_eq!(asked(), before + 1);
        }
        let is_here = config.app.starts_with("app.py");
        if let Some((_, at, _)) = &mut *LATEST.lock() {
            *at = at.checked_sub(MAX_AGE).unwrap();
        }
        config.served(&scratch.0).unwrap();
        assert_eq!(asked(), before + 1 + usize::from(!is_here), "{}", config.app);
    }

    for (script, expected) in [
        ("echo one >&2; echo 'callboard.describe: app.py:3: no name' >&2; exit 1", "app.py:3: no name"),
        ("echo 'first' >&2; echo 'the last line' >&2; echo >&2; exit 2", "the last line"),
        ("echo '{\"services\": 7}'", "described app.py as something that is not known"),
    ] {
        let error = describe(&scratch.interpreter(script), "app.py", &scratch.0).unwrap_err();
        assert!(matches!(&error, PythonError::Refused { message } if message.contains(expected)), "{error}");
        assert!(!error.to_string().contains("first"), "{error}");
    }
    // Much output is not kept, and output without end ends the import.
    let loud = scratch.interpreter("yes | head -c 3000000 >&2; echo 'callboard.describe: no name' >&2; exit 1");
    assert_eq!(describe(&loud, "app.py", &scratch.0).unwrap_err().to_string(), "no name");
    let endless = describe(&scratch.interpreter("yes"), "app.py", &scratch.0).unwrap_err().to_string();
    assert_eq!(endless, "app.py: its import prints more than 16777216 bytes to the standard output");
    for length in [LAST_BYTES - 1, LAST_BYTES, LAST_BYTES + 1, 3 * LAST_BYTES] {
        let bytes: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
        assert_eq!(last_bytes(&*bytes), bytes[length.saturating_sub(LAST_BYTES)..]);
    }
    assert_eq!(bounded(&[7; 9][..], 9), Ok(vec![7; 9]));
    assert!(bounded(&[7; 10][..], 9).is_err());
    assert_eq!(last_bytes(Interrupted(vec![Ok(b"a"), Err(io::ErrorKind::Interrupted), Ok(b"b")])), b"ab");
    assert_eq!(last_bytes(Interrupted(vec![Ok(b"a"), Err(io::ErrorKind::BrokenPipe), Ok(b"b")])), b"a");
    for line in ["No module named callboard.describe", "ModuleNotFoundError: No module named 'callboard'"] {
        let python = scratch.interpreter(&format!("echo \"{line}\" >&2; exit 1"));
        let error = describe(&python, "app.py", &scratch.0).unwrap_err();
        assert!(matches!(error, PythonError::NoPackage { .. }), "{error}");
    }
    let error = describe(&scratch.0.join("missing"), "app.py", &scratch.0).unwrap_err();
    assert!(matches!(error, PythonError::NoInterpreter { .. }), "{error}");
}
