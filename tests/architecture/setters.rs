//! The form of setters and constants, as CONTRIBUTING.md promises it.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::{code_of, crates, identifiers, sources};

/// The setters with an argument of the types in these lines: by type, those whose names begin with `with_`, and the
/// others.
type Setters = BTreeMap<String, [BTreeSet<String>; 2]>;

fn setters(lines: &[(usize, String)]) -> Setters {
    let (mut found, mut type_name) = (Setters::new(), String::new());
    for (_, code) in lines {
        if let Some(header) = code.trim_start().strip_prefix("impl") {
            type_name = identifiers(without_generics(header)).next().unwrap_or_default().to_owned();
        }
        let Some((_, declared)) = code.split_once("pub fn ") else { continue };
        let takes_self = declared.contains("(self, ") || declared.contains("(mut self, ");
        let name = identifiers(declared).next().unwrap_or_default();
        if takes_self && declared.ends_with("-> Self {") && !name.starts_with("map_") {
            // A macro names them `$with`.
            let has_prefix = name == "with" || name.starts_with("with_");
            let forms = found.entry(type_name.clone()).or_default();
            forms[usize::from(!has_prefix)].insert(name.to_owned());
        }
    }
    found
}

/// What follows `<T: Bound<U>>`.
fn without_generics(header: &str) -> &str {
    let mut depth = 0;
    let is_end = |c: char| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    };
    header.find(is_end).map_or("", |end| &header[end..])
}

#[test]
fn a_type_has_one_form_of_setters() {
    let mut wrong = Vec::new();
    for directory in crates() {
        let mut found = Setters::new();
        for file in sources(&directory.join("src")) {
            for (type_name, forms) in setters(&code_of(&file)) {
                let all = found.entry(type_name).or_default();
                all.iter_mut().zip(forms).for_each(|(all, form)| all.extend(form));
            }
        }
        let mixed = found.into_iter().filter(|(_, forms)| forms.iter().all(|form| !form.is_empty()));
        wrong.extend(mixed.map(|(type_name, forms)| format!("{}: {type_name}: {forms:?}", directory.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn setters_take_and_return_self_and_defaults_belong_to_a_type() {
    let mut wrong = Vec::new();
    for file in crates().iter().flat_map(|directory| sources(&directory.join("src"))) {
        for (line, code) in code_of(&file) {
            let is_setter = code.contains("pub fn set_") || code.contains("pub fn ") && code.contains("-> &mut Self");
            if is_setter && code.contains("(&mut self") || code.starts_with("pub const DEFAULT_") {
                wrong.push(format!("{}:{line}: {code}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn both_forms_of_a_type_are_found() {
    let text = "
impl<In: Data, Out: Into<In>> Stage<In, Out> {
    pub fn with_settings(self, settings: StageSettings) -> Self {
    pub fn pure(self) -> Self {
    pub fn queue(mut self, entries: usize) -> Self {
}
impl Limits {";
    let lines: Vec<_> = text.lines().map(str::to_owned).enumerate().collect();
    let found = setters(&lines);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["Stage"]);
    let names = |form: usize| found["Stage"][form].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((names(0), names(1)), (vec!["with_settings"], vec!["queue"]));
}
