//! The families of edges and programs on the node's page of metrics. A scraper refuses a whole page with two families
//! of one name, so the second family is left out.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

/// The last line of a page. A part that continues must not have it.
const END: &str = "# EOF\n";

/// More than a program has; names that change with each page must not fill the memory.
const MAX_LEFT_OUT: usize = 100;

type Part = Arc<dyn Fn() -> String + Send + Sync>;

/// What edges and programs show beside the node.
#[derive(Default)]
pub(crate) struct ExtraFamilies {
    parts: RwLock<Vec<Part>>,
    /// The names of families that are not shown, as far as the log has them.
    left_out: Mutex<HashSet<String>>,
}

impl ExtraFamilies {
    /// Shows these families from now on.
    pub(crate) fn add(&self, part: impl Fn() -> String + Send + Sync + 'static) {
        self.parts.write().push(Arc::new(part));
    }

    /// The page of the node, these families, and those of the edge that shows the page.
    pub(crate) fn append_to(&self, node: &str, own: &str) -> String {
        let (node, own) = (node.trim_end_matches(END), own.trim_end_matches(END));
        // Code of the program, so without the lock.
        let parts = self.parts.read().clone();
        let parts: Vec<String> = parts.iter().map(|part| part()).filter(|part| !part.is_empty()).collect();
        let mut page = node.to_owned();
        let mut names = FamilyNames::default();
        if !parts.is_empty() {
            names.note(node);
            names.note(own);
        }
        for part in &parts {
            names.append(part, &mut page, |name| self.tell_left_out(name));
        }
        page.push_str(own);
        page.push_str(END);
        page
    }

    /// Says once for each name that a family is not shown.
    fn tell_left_out(&self, family: &str) {
        let mut left_out = self.left_out.lock();
        if left_out.len() < MAX_LEFT_OUT && left_out.insert(family.to_owned()) {
            tracing::error!(
                parent: None, family, "a family of metrics is left out of /metrics: another family has its name"
            );
        }
    }
}

impl fmt::Debug for ExtraFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtraFamilies").field("parts", &self.parts.read().len()).finish_non_exhaustive()
    }
}

/// The suffixes of samples of one family, in the text format of OpenMetrics.
const SUFFIXES: [&str; 9] = ["", "_total", "_created", "_bucket", "_count", "_sum", "_info", "_gcount", "_gsum"];

/// The names of the families on a page.
#[derive(Debug, Default)]
struct FamilyNames<'a>(HashSet<&'a str>);

impl<'a> FamilyNames<'a> {
    /// Adds the names of a valid page.
    fn note(&mut self, page: &'a str) {
        self.0.extend(page.lines().filter_map(described_family).map(base_name));
    }

    /// Appends the families of `part` whose names are free. `left_out` gets the names of the others.
    fn append(&mut self, part: &'a str, page: &mut String, mut left_out: impl FnMut(&str)) {
        let mut family: Option<Family<'a>> = None;
        for line in part.lines() {
            let described = described_family(line);
            // Blank lines and comments are not part of the format.
            let Some(name) = described.or_else(|| sample_name(line)) else { continue };
            let goes_on = family.as_ref().is_some_and(|family| match described {
                Some(name) => name == family.name && !family.has_samples,
                None => name.strip_prefix(family.name).is_some_and(|suffix| SUFFIXES.contains(&suffix)),
            });
            if !goes_on {
                let is_shown = self.0.insert(base_name(name));
                if !is_shown {
                    left_out(name);
                }
                family = Some(Family { name, has_samples: false, is_shown });
            }
            let Some(family) = &mut family else { continue };
            family.has_samples |= described.is_none();
            if family.is_shown {
                page.push_str(line);
                page.push('\n');
            }
        }
    }
}

/// The family of the current line.
struct Family<'a> {
    name: &'a str,
    has_samples: bool,
    is_shown: bool,
}

/// The family that a line describes: `# TYPE name counter`.
fn described_family(line: &str) -> Option<&str> {
    let mut words = line.strip_prefix("# ")?.split_ascii_whitespace();
    matches!(words.next()?, "TYPE" | "HELP" | "UNIT").then(|| words.next())?
}

/// The name of a sample: `name{label="value"} 1`.
fn sample_name(line: &str) -> Option<&str> {
    let name = line.split(['{', ' ', '\t']).next()?;
    (!name.is_empty() && !name.starts_with('#')).then_some(name)
}

/// A counter may be declared with the suffix of its samples.
fn base_name(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "# HELP calls Calls\n# TYPE calls counter\ncalls_total 7\n";

    /// The families of these parts on a page with [`OURS`], and the names that are left out.
    fn page(parts: &[&str]) -> (String, Vec<String>) {
        let (mut names, mut page, mut left_out) = (FamilyNames::default(), String::new(), Vec::new());
        names.note(OURS);
        for part in parts {
            names.append(part, &mut page, |name| left_out.push(name.to_owned()));
        }
        (page, left_out)
    }

    #[test]
    fn families_with_free_names_are_shown_as_they_are() {
        let part = "# HELP mine Mine\n# TYPE mine histogram\nmine_bucket{le=\"+Inf\"} 1\nmine_sum 1\nmine_count 1\n\
                    # TYPE other gauge\nother{a=\"b # TYPE calls\"} 1\nother{a=\"c\"} 2\nbare 3\n";
        assert_eq!(page(&[part]), (part.to_owned(), vec![]));
        // A part may lack its last line end, and may have comments and an end mark.
        assert_eq!(page(&["mine 1", "# a comment\n\nyours 2\n# EOF\n"]), ("mine 1\nyours 2\n".to_owned(), vec![]));
    }

    #[test]
    fn a_name_that_is_in_use_is_left_out_with_its_samples() {
        for taken in ["# TYPE calls gauge\ncalls 1\n", "# TYPE calls_total counter\ncalls_total 1\n", "calls_total 1\n"]
        {
            let (shown, left_out) =
                page(&[&format!("# TYPE mine gauge\nmine 1\n{taken}# TYPE yours gauge\nyours 2\n")]);
            assert_eq!(shown, "# TYPE mine gauge\nmine 1\n# TYPE yours gauge\nyours 2\n");
            assert!(left_out.len() == 1 && left_out[0].starts_with("calls"), "{left_out:?}");
        }
    }

    #[test]
    fn of_two_parts_with_one_name_the_first_is_shown() {
        let (one, other) =
            ("# HELP mine A\n# TYPE mine counter\nmine_total 1\n", "# TYPE mine counter\nmine_total 2\n");
        assert_eq!(page(&[one, other]), (one.to_owned(), vec!["mine".to_owned()]));
        assert_eq!(page(&[&[one, other].concat()]), (one.to_owned(), vec!["mine".to_owned()]));
    }

    #[test]
    fn a_page_ends_once_after_the_families_of_its_edge() {
        let extra = ExtraFamilies::default();
        assert_eq!(extra.append_to(OURS, ""), format!("{OURS}# EOF\n"));
        extra.add(|| "# TYPE y counter\ny_total 2\n".to_owned());
        extra.add(|| "# TYPE z counter\nz_total 3\n# EOF\n".to_owned());
        let page = extra.append_to("# TYPE x counter\nx_total 1\n# EOF\n", "# TYPE own gauge\nown 4\n# EOF\n");
        let families = "# TYPE x counter\nx_total 1\n# TYPE y counter\ny_total 2\n# TYPE z counter\nz_total 3\n";
        assert_eq!(page, format!("{families}# TYPE own gauge\nown 4\n# EOF\n"));
    }

    #[test]
    fn a_family_whose_name_is_in_use_is_left_out_and_told_once() {
        let extra = ExtraFamilies::default();
        extra.add(|| "# TYPE x gauge\nx 7\n# TYPE y counter\ny_total 2\n".to_owned());
        extra.add(|| "# TYPE y counter\ny_total 3\n# TYPE own counter\n".to_owned());
        let page = || extra.append_to("# TYPE x counter\nx_total 1\n# EOF\n", "# TYPE own gauge\nown 4\n# EOF\n");
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        let text = tracing::subscriber::with_default(subscriber, || {
            page();
            page()
        });
        assert_eq!(text, "# TYPE x counter\nx_total 1\n# TYPE y counter\ny_total 2\n# TYPE own gauge\nown 4\n# EOF\n");
        let told = String::from_utf8(lines.0.lock().clone()).unwrap();
        let count = |name: &str| told.matches(&format!("family=\"{name}\"")).count();
        assert_eq!(["x", "y", "own"].map(count), [1, 1, 1], "{told}");
    }

    /// What a subscriber writes.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
