//! What the initiator's library says in public is complete: a program that depends on it alone can name every type that
//! a public signature has.

use crate::source::Crate;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::BTreeSet;
use std::path::Path;
use syn::{ImplItem, Item, TraitItem, UseTree, Visibility};

/// The names that the root of a crate makes public.
fn exported(code: &Crate) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in &code.modules[&Vec::new()].items {
        if let Item::Use(one) = item
            && is_public(&one.vis)
        {
            collect_names(&one.tree, &mut names);
        }
    }
    names
}

fn collect_names(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => collect_names(&path.tree, names),
        UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
        UseTree::Rename(rename) => drop(names.insert(rename.rename.to_string())),
        UseTree::Group(group) => group.items.iter().for_each(|one| collect_names(one, names)),
        UseTree::Glob(_) => {}
    }
}

/// What an item shows to other crates: signatures, and types of public fields.
fn shown(item: &Item) -> TokenStream {
    let mut tokens = TokenStream::new();
    match item {
        Item::Fn(one) if is_public(&one.vis) => one.sig.to_tokens(&mut tokens),
        Item::Const(one) if is_public(&one.vis) => one.ty.to_tokens(&mut tokens),
        Item::Type(one) if is_public(&one.vis) => one.ty.to_tokens(&mut tokens),
        Item::Enum(one) if is_public(&one.vis) => {
            let fields = one.variants.iter().flat_map(|variant| &variant.fields);
            fields.for_each(|field| field.ty.to_tokens(&mut tokens));
        }
        Item::Struct(one) if is_public(&one.vis) => {
            let fields = one.fields.iter().filter(|field| is_public(&field.vis));
            fields.for_each(|field| field.ty.to_tokens(&mut tokens));
        }
        Item::Trait(one) if is_public(&one.vis) => {
            for item in &one.items {
                if let TraitItem::Fn(function) = item {
                    function.sig.to_tokens(&mut tokens);
                }
            }
        }
        Item::Impl(one) if one.trait_.is_none() => {
            for item in &one.items {
                match item {
                    ImplItem::Fn(function) if is_public(&function.vis) => {
                        function.sig.to_tokens(&mut tokens);
                    }
                    ImplItem::Const(constant) if is_public(&constant.vis) => {
                        constant.ty.to_tokens(&mut tokens);
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    tokens
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn collect_words(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_words(group.stream(), words),
            TokenTree::Ident(word) => drop(words.insert(word.to_string())),
            _ => {}
        }
    }
}

/// Whether a program that depends on one of ours alone cannot name it otherwise.
fn is_of_another_crate(path: &[String]) -> bool {
    path.first().is_some_and(|first| first.starts_with("ringfab_") || first == "uuid")
}

/// What public signatures name of other crates, and the root does not export.
fn complaints(code: &Crate) -> Vec<String> {
    let (exported, mut wrong) = (exported(code), Vec::new());
    for (path, module) in &code.modules {
        let mut words = BTreeSet::new();
        module.items.iter().for_each(|item| collect_words(shown(item), &mut words));
        for word in words {
            let foreign = module.imported.get(&word).is_some_and(|source| is_of_another_crate(source));
            if (foreign && !exported.contains(&word)) || is_of_another_crate(std::slice::from_ref(&word)) {
                wrong.push(format!("{}: {word}", path.join("::")));
            }
        }
    }
    wrong
}

#[test]
fn the_initiator_exports_what_its_public_signatures_name() {
    let code = Crate::read(&crate::root().join("initiator/library/src/lib.rs"));
    let wrong = complaints(&code);
    assert!(wrong.is_empty(), "not exported by the root: {wrong:#?}");
}

fn complaints_of(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lib.rs");
    std::fs::write(&file, text).expect("a file");
    complaints(&Crate::read(Path::new(&file)))
}

#[test]
fn what_is_not_exported_is_found_in_every_kind_of_signature() {
    for shows in [
        "pub fn f(pool: &Pool) {}",
        "pub struct S { pub pool: Pool }",
        "pub enum E { Of(Pool), }",
        "pub trait T { fn f(&self, pool: Option<Pool>); }",
        "pub struct S; impl S { pub fn f(&self) -> Vec<Pool> { todo() } }",
        "pub struct S; impl S { pub const C: Pool = Pool; }",
    ] {
        let wrong = complaints_of(&format!("mod a {{ use ringfab_memory::Pool; {shows} }}"));
        assert_eq!(wrong, ["a: Pool"], "{shows}");
        let exported =
            format!("pub use ringfab_memory::{{Pool}}; mod a {{ use ringfab_memory::Pool; {shows} }}");
        assert!(complaints_of(&exported).is_empty(), "{shows}");
    }
    assert_eq!(complaints_of("pub fn f(pool: ringfab_memory::Pool) {}"), [": ringfab_memory"]);
    for hides in [
        "pub enum E { Pool, }",
        "struct S { pool: Pool }",
        "pub(crate) fn f(pool: &Pool) {}",
        "pub fn f() { Pool::new() }",
    ] {
        assert!(complaints_of(&format!("use ringfab_memory::Pool; {hides}")).is_empty(), "{hides}");
    }
}
