//! `unio::specs!()`: expands what a crate's build script left in `OUT_DIR`.
//!
//! It parses no spec: spans are poor inside a procedural macro, and it cannot watch files.

mod handles;
mod launchers;

use std::path::Path;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use unio_interface::Artefacts;

/// Expands the crate's spec sets: a module for each, with launchers, slots, states, buffers and resets.
///
/// Needs a build script that calls `unio_codegen::build()`. What is wrong in a spec is raised here.
#[proc_macro]
pub fn specs(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    if !input.is_empty() {
        return error("specs!() takes no arguments: the sets are named in Cargo.toml under [package.metadata.unio]")
            .into();
    }
    expand().unwrap_or_else(|message| error(&message)).into()
}

fn error(message: &str) -> TokenStream {
    syn::Error::new(Span::call_site(), message).to_compile_error()
}

fn expand() -> Result<TokenStream, String> {
    let out =
        std::env::var("OUT_DIR").map_err(|_| "this crate has no build script that calls unio_codegen::build()")?;
    let folder = Path::new(&out).join("unio");
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name))
            .map_err(|error| format!("{name} of the generated sets cannot be read ({error}): the build script must call unio_codegen::build()"))
    };
    let message = read("error.txt")?;
    if !message.is_empty() {
        return Err(format!("the specs do not build:\n\n{message}\n"));
    }
    let names: Vec<String> = parse("sets.json", &read("sets.json")?)?;
    let mut modules = TokenStream::new();
    for name in names {
        let file = format!("{name}.json");
        let artefacts: Artefacts = parse(&file, &read(&file)?)?;
        modules.extend(module(&artefacts));
    }
    Ok(modules)
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("{name} of the generated sets is damaged ({error}): run `cargo clean`"))
}

fn module(artefacts: &Artefacts) -> TokenStream {
    let name = launchers::raw(&artefacts.set);
    let doc = format!("The spec set `{}`.", artefacts.set);
    let file = format!("/unio/{}.json", artefacts.set);
    let fingerprint = &artefacts.fingerprint;
    let handles = handles::expand(artefacts);
    let launchers = launchers::expand(artefacts);
    quote! {
        #[doc = #doc]
        #[allow(dead_code, unreachable_patterns, clippy::all)]
        pub mod #name {
            /// Hash over names, indices and the parameter layout.
            pub const FINGERPRINT: &str = #fingerprint;

            /// Kernels, buffers and launches, as data.
            pub fn artefacts() -> &'static ::unio::interface::Artefacts {
                static ARTEFACTS: ::std::sync::LazyLock<::unio::interface::Artefacts> =
                    ::std::sync::LazyLock::new(|| ::unio::launcher::artefacts(include_str!(concat!(env!("OUT_DIR"), #file))));
                &ARTEFACTS
            }

            #handles
            #launchers
        }
    }
}
