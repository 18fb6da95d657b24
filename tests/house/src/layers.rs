//! The modules of a crate have an order, and each uses only those before it. `tests/layers.toml` is the table.
//!
//! The test reads the paths that begin with `crate`, `super`, `self` or the name of a module's own child, in code and
//! in macros, and follows what modules pass on by `use` to where it is defined. It does not see which methods a value
//! has: a method that one module adds to a type of another is found wherever the type is.

use crate::source::{Crate, ModulePath};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// One table of `tests/layers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    /// The file that begins the crate.
    root: String,
    /// The module whose children these are. Without it: those of the crate.
    #[serde(default)]
    module: String,
    /// Each uses only those before it.
    order: Vec<String>,
    /// Arrows that go up and are still to be removed.
    #[serde(default)]
    to_mend: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    layers: Vec<Layers>,
}

/// What a module's own file defines, beside its children.
const OWN: &str = "(own)";

/// What is wrong with a crate, a line each.
fn complaints(folder: &Path, layers: &Layers) -> Vec<String> {
    let code = Crate::read(&folder.join(&layers.root));
    let of: ModulePath =
        layers.module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if !code.modules.contains_key(&of) {
        return vec![format!("there is no module {}", layers.module)];
    }
    let arrows = arrows(&code, &of);
    let mut wrong = unlisted(&code, &of, &arrows, layers);
    let place = |name: &str| layers.order.iter().position(|one| one == name);
    let mut up = BTreeSet::new();
    for ((from, to), example) in &arrows {
        if place(from) >= place(to) {
            continue;
        }
        let arrow = format!("{from} -> {to}");
        if !layers.to_mend.contains(&arrow) {
            wrong.push(format!("{arrow} goes up: {example}"));
        }
        up.insert(arrow);
    }
    let mended = layers.to_mend.iter().filter(|arrow| !up.contains(*arrow));
    wrong.extend(mended.map(|arrow| format!("{arrow} is mended: take it off the list")));
    wrong
}

/// Modules that the order does not have, and the reverse.
fn unlisted(
    code: &Crate,
    of: &ModulePath,
    arrows: &BTreeMap<(String, String), String>,
    layers: &Layers,
) -> Vec<String> {
    let mut there: BTreeSet<String> = code
        .modules
        .keys()
        .filter(|path| path.len() == of.len() + 1)
        .filter_map(|path| below(of, path))
        .collect();
    there.extend(arrows.keys().flat_map(|(from, to)| [from, to]).filter(|name| *name == OWN).cloned());
    let listed: BTreeSet<String> = layers.order.iter().cloned().collect();
    let missing = there.difference(&listed).map(|name| format!("{name} has no place in the order"));
    let gone = listed.difference(&there).map(|name| format!("{name} is in the order and not in the code"));
    missing.chain(gone).collect()
}

/// Which child uses which, each with an example: who wrote what.
fn arrows(code: &Crate, of: &ModulePath) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for (path, module) in &code.modules {
        let Some(from) = below(of, path) else { continue };
        for (named, written) in code.named_by(path) {
            let Some(to) = below(of, &named) else { continue };
            if from != to {
                let example = || format!("`{written}` in {}", module.file.display());
                found.entry((from.clone(), to)).or_insert_with(example);
            }
        }
    }
    found
}

/// The child of a module to which a path belongs.
fn below(of: &ModulePath, path: &ModulePath) -> Option<String> {
    let rest = path.strip_prefix(of.as_slice())?;
    Some(rest.first().map_or_else(|| OWN.to_owned(), Clone::clone))
}

#[test]
fn modules_use_only_those_before_them() {
    let text = fs::read_to_string(crate::root().join("tests/layers.toml")).expect("the table of layers");
    let table: Table = toml::from_str(&text).expect("a table of layers");
    let mut wrong = Vec::new();
    for layers in &table.layers {
        let found = complaints(&crate::root(), layers);
        let short = |line: String| line.replace(&format!("{}/", crate::root().display()), "");
        wrong.extend(
            found.into_iter().map(|line| format!("{} {}: {}", layers.root, layers.module, short(line))),
        );
    }
    assert!(wrong.is_empty(), "tests/layers.toml:\n{}", wrong.join("\n"));
}

#[test]
fn every_crate_has_its_layers() {
    let text = fs::read_to_string(crate::root().join("tests/layers.toml")).expect("the table of layers");
    for root in crate::crate_roots() {
        let several = Crate::read(&crate::root().join(&root)).modules.len() > 2;
        assert!(
            !several || text.contains(&format!("root = \"{root}\"")),
            "tests/layers.toml does not have {root}"
        );
    }
}

mod tests {
    use super::{Layers, complaints};
    use std::fs;

    /// A crate of three modules: `low` and `high` use nothing of each other unless they are told to.
    fn complaints_of(low: &str, to_mend: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        fs::create_dir(folder.path().join("high")).expect("a folder");
        write("lib.rs", "mod high;\nmod low;\npub use high::Passed;\n");
        write("low.rs", low);
        write(
            "high/mod.rs",
            "mod inner;\npub use inner::Passed;\nuse crate::low::Low;\npub struct High(Low);\n",
        );
        write("high/inner.rs", "use super::High;\npub struct Passed(High);\n");
        let layers = Layers {
            root: "lib.rs".to_owned(),
            module: String::new(),
            order: vec!["low".to_owned(), "high".to_owned()],
            to_mend: to_mend.iter().map(|arrow| (*arrow).to_owned()).collect(),
        };
        complaints(folder.path(), &layers)
    }

    #[test]
    fn an_arrow_that_goes_down_is_allowed() {
        assert!(complaints_of("pub struct Low;", &[]).is_empty());
    }

    #[test]
    fn an_arrow_that_goes_up_is_found_however_it_is_written() {
        for up in [
            "use crate::high::High;",
            "use crate::{high::{inner::Passed as Other}};",
            "use super::high;",
            "use crate::Passed;",
            "fn f() { let _ = crate::high::High::new(); }",
            "fn f() { println!(\"{}\", super::high::NUMBER); }",
            "mod own { use super::super::high::*; }",
            "pub(crate) use crate::high::High;",
        ] {
            let wrong = complaints_of(&format!("pub struct Low;\n{up}\n"), &[]);
            assert!(wrong.len() == 1 && wrong[0].starts_with("low -> high goes up: "), "{up}: {wrong:?}");
        }
    }

    #[test]
    fn what_tests_and_comments_and_other_crates_name_is_no_arrow() {
        for harmless in [
            "#[cfg(test)]\nmod tests { use crate::high::High; }",
            "#[cfg(test)]\nuse crate::high::High;",
            "/// See [`crate::high::High`].\nfn f() {}",
            "fn f() { let _ = \"crate::high::High\"; }",
            "use std::high::High;",
            "fn f() { let _ = std::high::High::new(); }",
        ] {
            let wrong = complaints_of(&format!("pub struct Low;\n{harmless}\n"), &[]);
            assert!(wrong.is_empty(), "{harmless}: {wrong:?}");
        }
    }

    #[test]
    fn what_is_to_be_mended_is_allowed_until_it_is() {
        let up = "pub struct Low;\nuse crate::high::High;";
        assert!(complaints_of(up, &["low -> high"]).is_empty());
        let wrong = complaints_of("pub struct Low;", &["low -> high"]);
        assert_eq!(wrong, ["low -> high is mended: take it off the list"]);
    }

    #[test]
    fn every_module_has_a_place() {
        let wrong = complaints_of("pub struct Low;\nmod own {}", &[]);
        assert!(wrong.is_empty(), "what lies deeper has a table of its own: {wrong:?}");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("lib.rs"), "mod a {}\n").expect("a file");
        let layers = Layers {
            root: "lib.rs".to_owned(),
            module: String::new(),
            order: vec!["b".to_owned()],
            to_mend: Vec::new(),
        };
        let wrong = complaints(folder.path(), &layers);
        assert_eq!(wrong, ["a has no place in the order", "b is in the order and not in the code"]);
    }
}
