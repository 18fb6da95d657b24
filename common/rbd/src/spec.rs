//! Which image is meant: its pool, its namespace, its name, and a snapshot of it.

use std::fmt;
use std::str::FromStr;

use ringfab_base::visible;

/// Names an image: `pool/image`, `pool/namespace/image`, and either with `@snapshot`.
///
/// It is made by parsing, so each part is there and could be the name of something: not empty, without control
/// characters, and without the `/` and `@` that part them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    pool: String,
    namespace: Option<String>,
    image: String,
    snapshot: Option<String>,
}

impl ImageSpec {
    /// The pool's name.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The namespace within the pool; `None` for the one without a name.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The image's name.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// The snapshot's name; `None` for the image itself. A snapshot is never written.
    pub fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_deref()
    }

    /// The image with pool and namespace, and without the snapshot.
    pub(crate) fn path(&self) -> String {
        let Self { pool, image, .. } = self;
        match &self.namespace {
            Some(namespace) => format!("{pool}/{namespace}/{image}"),
            None => format!("{pool}/{image}"),
        }
    }
}

/// As it is parsed.
impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

/// Why a text names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no pool.
    #[error("{} names no pool: write pool/image", visible(.0))]
    NoPool(String),
    /// Something between two signs, or at an end, is missing.
    #[error("a part of {} is empty: write pool/image or pool/namespace/image, then perhaps @snapshot", visible(.0))]
    Empty(String),
    /// There are more parts than a name has.
    #[error("{} has too many parts: write pool/image or pool/namespace/image, and @snapshot once", visible(.0))]
    TooMany(String),
    /// No name has such a character.
    #[error("{} has a control character", visible(.0))]
    Control(String),
}

impl FromStr for ImageSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.contains(char::is_control) {
            return Err(SpecError::Control(text.to_owned()));
        }
        let parts: Vec<&str> = text.split('/').collect();
        let (pool, namespace, last) = match parts[..] {
            [pool, last] => (pool, None, last),
            [pool, namespace, last] => (pool, Some(namespace), last),
            [_] => return Err(SpecError::NoPool(text.to_owned())),
            _ => return Err(SpecError::TooMany(text.to_owned())),
        };
        let mut names = last.split('@');
        let image = names.next().unwrap_or_default();
        let snapshot = names.next();
        if names.next().is_some() {
            return Err(SpecError::TooMany(text.to_owned()));
        }
        if [Some(pool), namespace, Some(image), snapshot].into_iter().flatten().any(str::is_empty) {
            return Err(SpecError::Empty(text.to_owned()));
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_with_its_pool_and_perhaps_a_namespace_and_a_snapshot() {
        for (text, pool, namespace, image, snapshot) in [
            ("rbd/disk", "rbd", None, "disk", None),
            ("rbd/tenant 1/disk", "rbd", Some("tenant 1"), "disk", None),
            ("rbd/disk@monday", "rbd", None, "disk", Some("monday")),
            ("a.b@c/t/d-e@f", "a.b@c", Some("t"), "d-e", Some("f")),
        ] {
            let spec: ImageSpec = text.parse().expect(text);
            assert_eq!(
                (spec.pool(), spec.namespace(), spec.image(), spec.snapshot()),
                (pool, namespace, image, snapshot)
            );
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn what_names_no_image_is_refused_with_what_is_missing() {
        let error = |text: &str| text.parse::<ImageSpec>().expect_err(text);
        assert_eq!(error("disk"), SpecError::NoPool("disk".to_owned()));
        assert_eq!(error(""), SpecError::NoPool(String::new()));
        for empty in ["/disk", "rbd/", "rbd//disk", "rbd/@monday", "rbd/disk@", "/"] {
            assert_eq!(error(empty), SpecError::Empty(empty.to_owned()));
        }
        for long in ["a/b/c/d", "rbd/disk@monday@noon"] {
            assert_eq!(error(long), SpecError::TooMany(long.to_owned()));
        }
        assert_eq!(error("rbd/disk\0"), SpecError::Control("rbd/disk\0".to_owned()));
        assert_eq!(error("disk").to_string(), "disk names no pool: write pool/image");
        assert!(error("rbd/a\nb").to_string().contains("rbd/a\\nb"));
    }
}
