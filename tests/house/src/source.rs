//! A crate's sources as a tree of modules, without what is compiled for tests only.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta, UseTree, Visibility};

/// Names from the root of a crate: `["core", "hosts"]`. The root itself is the empty path.
pub(crate) type ModulePath = Vec<String>;

/// One module, inline or in a file of its own.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    /// Without modules that have an entry of their own, and without tests.
    pub(crate) items: Vec<Item>,
    /// Names that are defined here: types, functions, traits, constants, macros.
    defined: BTreeSet<String>,
    /// Names that `use` brings here, and the path from where, as written.
    pub(crate) imported: BTreeMap<String, Vec<String>>,
    /// Paths of which everything is used.
    globs: Vec<Vec<String>>,
}

/// Every module of a crate.
pub(crate) struct Crate {
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

impl Crate {
    /// Reads a crate from its `lib.rs` or `main.rs`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut all = Self { modules: BTreeMap::new() };
        let folder = root.parent().expect("a folder").to_path_buf();
        all.read_file(root, &folder, Vec::new());
        all
    }

    fn read_file(&mut self, file: &Path, children: &Path, path: ModulePath) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(file, children, path, parsed.items);
    }

    fn add(&mut self, file: &Path, children: &Path, path: ModulePath, items: Vec<Item>) {
        let mut module = Module {
            file: file.to_path_buf(),
            items: Vec::new(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
        };
        for item in items.into_iter().filter(|item| !is_for_tests(attributes(item))) {
            if let Item::Mod(child) = item {
                self.add_child(file, children, &path, child);
            } else {
                module.note(&item);
                module.items.push(item);
            }
        }
        self.modules.insert(path, module);
    }

    fn add_child(&mut self, file: &Path, children: &Path, parent: &[String], child: ItemMod) {
        let name = child.ident.to_string();
        let mut path = parent.to_vec();
        path.push(name.clone());
        let below = children.join(&name);
        let stated = path_attribute(&child.attrs).map(|stated| file.with_file_name(stated));
        match child.content {
            Some((_, items)) => self.add(file, &below, path, items),
            None => {
                let candidates =
                    [stated.unwrap_or_else(|| children.join(format!("{name}.rs"))), below.join("mod.rs")];
                let found = candidates.iter().find(|candidate| candidate.exists());
                let found = found.unwrap_or_else(|| panic!("{}: no file for {name}", file.display()));
                self.read_file(found, &below, path);
            }
        }
    }

    /// The modules that a module's code names, each with the path as it was written. What a module passes on from one
    /// below it, for others to find, is no use of its own.
    pub(crate) fn named_by(&self, from: &ModulePath) -> BTreeMap<ModulePath, String> {
        let mut found = BTreeMap::new();
        for item in &self.modules[from].items {
            let passes_on = matches!(item, Item::Use(one) if !matches!(one.vis, Visibility::Inherited));
            let mut written = Vec::new();
            collect_paths(&item.to_token_stream(), &mut written);
            for path in written {
                let Some(named) = self.resolve(from, &path, 0) else { continue };
                if !passes_on || !named.starts_with(from) {
                    found.insert(named, path.join("::"));
                }
            }
        }
        found
    }

    /// The module that defines a type, by its name as a module writes it, or `None` for a type of another crate.
    pub(crate) fn home_of(&self, from: &ModulePath, written: &[String]) -> Option<ModulePath> {
        let module = &self.modules[from];
        let first = written.first()?;
        if written.len() == 1 && module.defined.contains(first) {
            return Some(from.clone());
        }
        let source = module.imported.get(first).cloned().unwrap_or_else(|| vec![first.clone()]);
        let path = [source, written[1..].to_vec()].concat();
        let in_globs = module.globs.iter().map(|glob| [glob.clone(), written.to_vec()].concat());
        let mut homes =
            std::iter::once(path.clone()).chain(in_globs).filter_map(|path| self.resolve(from, &path, 0));
        homes.find(|home| path.last().is_some_and(|name| self.modules[home].defined.contains(name)))
    }

    /// The module in which what a path names is defined, or `None` for what other crates define.
    fn resolve(&self, from: &ModulePath, written: &[String], depth: usize) -> Option<ModulePath> {
        let (mut at, rest) = self.start_of(from, written)?;
        let mut rest = rest.iter();
        while let Some(name) = rest.next() {
            let child = [at.clone(), vec![name.clone()]].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let module = &self.modules[&at];
            if depth < 8 && !module.defined.contains(name) {
                if let Some(source) = module.imported.get(name) {
                    let further = [source.clone(), rest.cloned().collect()].concat();
                    return self.resolve(&at, &further, depth + 1);
                }
                let globs = module.globs.iter().map(|glob| [glob.clone(), vec![name.clone()]].concat());
                let found = globs.filter_map(|path| self.resolve(&at, &path, depth + 1));
                if let Some(found) =
                    found.into_iter().find(|found| self.modules[found].defined.contains(name))
                {
                    return Some(found);
                }
            }
            break;
        }
        Some(at)
    }

    /// Where a path begins: the root, this module, one above it or one of its own.
    fn start_of<'a>(&self, from: &ModulePath, written: &'a [String]) -> Option<(ModulePath, &'a [String])> {
        let mut at = from.clone();
        let mut rest = written;
        match written.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &written[1..]),
            "self" => rest = &written[1..],
            "super" => {
                while let Some(("super", after)) =
                    rest.split_first().map(|(one, after)| (one.as_str(), after))
                {
                    at.pop();
                    rest = after;
                }
            }
            child if self.modules.contains_key(&[at.clone(), vec![child.to_owned()]].concat()) => {}
            _ => return None,
        }
        Some((at, rest))
    }
}

impl Module {
    fn note(&mut self, item: &Item) {
        let name = match item {
            Item::Const(one) => &one.ident,
            Item::Enum(one) => &one.ident,
            Item::Fn(one) => &one.sig.ident,
            Item::Static(one) => &one.ident,
            Item::Struct(one) => &one.ident,
            Item::Trait(one) => &one.ident,
            Item::Type(one) => &one.ident,
            Item::Union(one) => &one.ident,
            Item::Macro(one) => match &one.ident {
                Some(name) => name,
                None => return,
            },
            Item::Use(one) => return self.note_use(&one.tree, &mut Vec::new()),
            _ => return,
        };
        self.defined.insert(name.to_string());
    }

    fn note_use(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        let mut import = |name: String, last: String| {
            let path = if last == "self" { before.clone() } else { [before.clone(), vec![last]].concat() };
            self.imported.insert(name, path);
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_use(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) if name.ident == "self" => {
                let name = before.last().cloned().unwrap_or_default();
                import(name, "self".to_owned());
            }
            UseTree::Name(name) => import(name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(one) => import(one.rename.to_string(), one.ident.to_string()),
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Group(group) => {
                for one in &group.items {
                    self.note_use(one, before);
                }
            }
        }
    }
}

/// Whether what has these attributes is compiled for tests only.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.to_token_stream().to_string() == "# [cfg (test)]")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(one) => &one.attrs,
        Item::Enum(one) => &one.attrs,
        Item::Fn(one) => &one.attrs,
        Item::Impl(one) => &one.attrs,
        Item::Macro(one) => &one.attrs,
        Item::Mod(one) => &one.attrs,
        Item::Static(one) => &one.attrs,
        Item::Struct(one) => &one.attrs,
        Item::Trait(one) => &one.attrs,
        Item::Type(one) => &one.attrs,
        Item::Use(one) => &one.attrs,
        _ => &[],
    }
}

/// The file that `#[path = "..."]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("path")).find_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(path) => Some(path.value()),
                _ => None,
            },
            _ => None,
        }
    })
}

/// Every path in some code, also in macros; those in braces after a common beginning, one by one.
fn collect_paths(code: &TokenStream, found: &mut Vec<Vec<String>>) {
    let tokens: Vec<TokenTree> = code.clone().into_iter().collect();
    let mut next = 0;
    while next < tokens.len() {
        match &tokens[next] {
            TokenTree::Group(group) => {
                collect_paths(&group.stream(), found);
                next += 1;
            }
            // A method or a field is not the beginning of a path.
            TokenTree::Punct(dot) if dot.as_char() == '.' => next += 2,
            TokenTree::Ident(_) => next = collect_path(&tokens, next, &[], found),
            _ => next += 1,
        }
    }
}

/// Adds the path that begins at a token, and tells the token after it.
fn collect_path(
    tokens: &[TokenTree],
    start: usize,
    before: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let (mut path, mut next) = (before.to_vec(), start);
    while let Some(TokenTree::Ident(name)) = tokens.get(next) {
        path.push(name.to_string());
        next += 1;
        if !is_separator(tokens, next) {
            break;
        }
        next += 2;
        if let Some(TokenTree::Group(group)) = tokens.get(next)
            && group.delimiter() == Delimiter::Brace
        {
            collect_group(&group.stream(), &path, found);
            return next + 1;
        }
    }
    // A name alone is a variable, a type or a keyword.
    if path.len() > 1 {
        found.push(path);
    }
    next.max(start + 1)
}

fn collect_group(code: &TokenStream, before: &[String], found: &mut Vec<Vec<String>>) {
    let tokens: Vec<TokenTree> = code.clone().into_iter().collect();
    let mut next = 0;
    while next < tokens.len() {
        next = match &tokens[next] {
            TokenTree::Ident(name) if *name == "as" => next + 2,
            TokenTree::Ident(_) => collect_path(&tokens, next, before, found),
            TokenTree::Punct(star) if star.as_char() == '*' => {
                found.push(before.to_vec());
                next + 1
            }
            _ => next + 1,
        };
    }
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |token: Option<&TokenTree>, spacing: Option<Spacing>| match token {
        Some(TokenTree::Punct(one)) => {
            one.as_char() == ':' && spacing.is_none_or(|spacing| one.spacing() == spacing)
        }
        _ => false,
    };
    colon(tokens.get(at), Some(Spacing::Joint)) && colon(tokens.get(at + 1), None)
}
