//! Types that are small enough to know: methods over all blocks of a type, and fields. `tests/sizes.toml` has the
//! limits, and the types that are still larger. Functions are for Clippy, see `clippy.toml`.

use crate::source::{Crate, ModulePath, is_for_tests};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use syn::{Fields, ImplItem, Item, TraitItem, Type};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    methods_max: usize,
    fields_max: usize,
    /// Types that have more, by crate and name: what they have now.
    #[serde(default)]
    methods: BTreeMap<String, usize>,
    #[serde(default)]
    fields: BTreeMap<String, usize>,
}

/// A type, by the module that defines it.
type Name = (ModulePath, String);

/// The methods of each type and trait, without those of tests.
fn methods(code: &Crate) -> BTreeMap<Name, usize> {
    let mut found = BTreeMap::new();
    for (path, module) in &code.modules {
        for item in &module.items {
            let (name, count) = match item {
                Item::Impl(one) => {
                    let Some(name) = type_of(code, path, &one.self_ty) else { continue };
                    (name, one.items.iter().filter(|item| is_method(item)).count())
                }
                Item::Trait(one) => {
                    let functions = one.items.iter().filter(|item| matches!(item, TraitItem::Fn(_)));
                    ((path.clone(), one.ident.to_string()), functions.count())
                }
                _ => continue,
            };
            *found.entry(name).or_insert(0) += count;
        }
    }
    found
}

fn is_method(item: &ImplItem) -> bool {
    matches!(item, ImplItem::Fn(function) if !is_for_tests(&function.attrs))
}

/// The type of ours that a block is for.
fn type_of(code: &Crate, from: &ModulePath, written: &Type) -> Option<Name> {
    let path = match written {
        Type::Path(path) => &path.path,
        Type::Reference(reference) => return type_of(code, from, &reference.elem),
        _ => return None,
    };
    let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    Some((code.home_of(from, &names)?, names.last()?.clone()))
}

/// The fields of each structure.
fn fields(code: &Crate) -> BTreeMap<Name, usize> {
    let structures =
        code.modules.iter().flat_map(|(path, module)| module.items.iter().map(move |item| (path, item)));
    let found = structures.filter_map(|(path, item)| match item {
        Item::Struct(one) => match &one.fields {
            Fields::Named(fields) => Some(((path.clone(), one.ident.to_string()), fields.named.len())),
            _ => None,
        },
        _ => None,
    });
    found.collect()
}

/// What is too large, and what the list of larger ones says that is not so any more.
fn complaints(
    name_of_crate: &str,
    what: &str,
    found: &BTreeMap<Name, usize>,
    most: usize,
    larger: &BTreeMap<String, usize>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    // Two types of one name: the larger one counts.
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    for ((_, name), count) in found {
        let entry = by_name.entry(format!("{name_of_crate} {name}")).or_default();
        *entry = (*entry).max(*count);
    }
    for (name, count) in &by_name {
        match larger.get(name) {
            None if *count > most => wrong.push(format!("{name} has {count} {what}, {most} are allowed")),
            Some(allowed) if count > allowed => {
                wrong.push(format!("{name} has {count} {what} and had {allowed}: it may only shrink"));
            }
            Some(_) if *count <= most => {
                wrong.push(format!("{name} is small now: take its {what} off the list"));
            }

            Some(allowed) if count < allowed => {
                wrong.push(format!("{name} has {count} {what}: write that instead of {allowed}"));
            }
            _ => {}
        }
    }
    let ours =
        larger.keys().filter(|name| name.rsplit_once(' ').is_some_and(|(owner, _)| owner == name_of_crate));
    let gone = ours.filter(|name| !by_name.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name} is gone: take its {what} off the list")));
    wrong
}

fn complaints_of_crate(name: &str, root: &Path, limits: &Limits) -> Vec<String> {
    let code = Crate::read(root);
    let mut wrong = complaints(name, "methods", &methods(&code), limits.methods_max, &limits.methods);
    wrong.extend(complaints(name, "fields", &fields(&code), limits.fields_max, &limits.fields));
    wrong
}

#[test]
fn types_are_small_enough_to_know() {
    let text = fs::read_to_string(crate::root().join("tests/sizes.toml")).expect("the table of sizes");
    let limits: Limits = toml::from_str(&text).expect("a table of sizes");
    let mut wrong = Vec::new();
    for root in crate::crate_roots() {
        let name = root.trim_end_matches(".rs").replace("/src/lib", "").replace("/src/main", " (program)");
        wrong.extend(complaints_of_crate(&name, &crate::root().join(&root), &limits));
    }
    assert!(wrong.is_empty(), "tests/sizes.toml:\n{}", wrong.join("\n"));
}

mod tests {
    use super::{Limits, complaints_of_crate};
    use std::collections::BTreeMap;
    use std::fs;

    const CODE: &str = "
        mod more;
        pub struct Three { one: u8, two: u8, three: u8 }
        impl Three { fn one(&self) {} fn two(&self) {} }
        impl Clone for Three { fn clone(&self) -> Self { todo } }
        #[cfg(test)]
        impl Three { fn only_in_tests(&self) {} }
    ";

    fn complaints_with(methods: Option<usize>, fields: Option<usize>) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("lib.rs"), CODE).expect("a file");
        fs::write(folder.path().join("more.rs"), "use super::Three; impl Three { fn four() {} }")
            .expect("a file");
        let listed =
            |count: Option<usize>| BTreeMap::from_iter(count.map(|count| ("it Three".to_owned(), count)));
        let limits =
            Limits { methods_max: 3, fields_max: 2, methods: listed(methods), fields: listed(fields) };
        complaints_of_crate("it", &folder.path().join("lib.rs"), &limits)
    }

    #[test]
    fn methods_of_all_blocks_and_fields_are_counted() {
        let wrong = complaints_with(None, None);
        assert_eq!(wrong, ["it Three has 4 methods, 3 are allowed", "it Three has 3 fields, 2 are allowed"]);
    }

    #[test]
    fn what_is_larger_may_only_shrink() {
        assert!(complaints_with(Some(4), Some(3)).is_empty());
        assert_eq!(complaints_with(Some(5), Some(3)), ["it Three has 4 methods: write that instead of 5"]);
        assert_eq!(
            complaints_with(Some(3), Some(3)),
            ["it Three has 4 methods and had 3: it may only shrink"]
        );
    }
}
