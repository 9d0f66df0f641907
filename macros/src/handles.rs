//! Slots, states, buffers and resets as constants and types: a name that is misspelt does not build.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use unio_interface::{Artefacts, Elem, names};

/// Modules `slots`, `states`, `buffers` and the enum `Reset`.
pub(crate) fn expand(artefacts: &Artefacts) -> TokenStream {
    let (slots, states, buffers, resets) = (slots(artefacts), states(artefacts), buffers(artefacts), resets(artefacts));
    quote! { #slots #states #buffers #resets }
}

fn slots(artefacts: &Artefacts) -> TokenStream {
    let total = artefacts.isv_len;
    let constants = artefacts.slots.iter().filter(|s| !s.reserved).map(|slot| {
        let (name, doc, index, members) = (beside("TOTAL", &slot.name), &slot.doc, slot.index, &slot.members);
        let text = &slot.name;
        let singles = members.iter().enumerate().map(|(n, member)| {
            let name = constant(&format!("{}_{member}_INDEX", slot.name));
            let (doc, index) = (format!("Index of the member `{member}` of [`{}`].", constant(&slot.name)), index + n);
            quote! { #[doc = #doc] pub const #name: usize = #index; }
        });
        quote! {
            #[doc = #doc]
            pub const #name: ::unio::SlotOf = ::unio::SlotOf::new(#index, #text, &[#(#members),*]);
            #(#singles)*
        }
    });
    quote! {
        /// Slots of the ISV.
        pub mod slots {
            /// Number of slots, reserved ones included.
            pub const TOTAL: usize = #total;
            #(#constants)*
        }
    }
}

fn states(artefacts: &Artefacts) -> TokenStream {
    let constants = artefacts.states.iter().map(|state| {
        let (name, doc, word, text) = (constant(&state.name), &state.doc, state.word, &state.name);
        let ty = if state.int { quote!(i32) } else { quote!(f32) };
        quote! { #[doc = #doc] pub const #name: ::unio::StateOf<#ty> = ::unio::StateOf::new(#word, #text); }
    });
    quote! {
        /// Scalar states on the device.
        pub mod states { #(#constants)* }
    }
}

fn buffers(artefacts: &Artefacts) -> TokenStream {
    let buffers = artefacts.program.iter().flat_map(|p| &p.buffers).enumerate();
    let constants = buffers.map(|(index, buffer)| {
        let (name, text) = (beside("HEADS", &buffer.name), &buffer.name);
        let doc = format!("`{}`, shape {:?}.", buffer.name, buffer.shape);
        let ty = if buffer.elem == Elem::I32 { quote!(i32) } else { quote!(f32) };
        quote! { #[doc = #doc] pub const #name: ::unio::BufferOf<#ty> = ::unio::BufferOf::new(#index, #text); }
    });
    let heads = artefacts.program.iter().flat_map(|p| p.heads.iter().map(move |head| (p, head)));
    let heads = heads.map(|(program, (head, buffer))| {
        let name = &program.buffers[*buffer].name;
        quote! { (#head, ::unio::BufferOf::new(#buffer, #name)) }
    });
    quote! {
        /// Device buffers of the step.
        pub mod buffers {
            #(#constants)*
            /// Heads of the model: name, and one number a sample.
            pub const HEADS: &[(&str, ::unio::BufferOf<f32>)] = &[#(#heads),*];
        }
    }
}

/// Every entry of the registry is a variant, and every variant has its arm.
fn resets(artefacts: &Artefacts) -> TokenStream {
    let variants: Vec<_> = artefacts.resets.iter().map(|r| format_ident!("{}", camel(&r.name))).collect();
    let names: Vec<&String> = artefacts.resets.iter().map(|r| &r.name).collect();
    let whens = artefacts.resets.iter().map(|r| format_ident!("{}", format!("{:?}", r.when)));
    let indices = 0..artefacts.resets.len();
    quote! {
        /// The reset registry: what starts anew, and when.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reset { #(#[doc = #names] #variants),* }

        impl Reset {
            /// Every entry.
            pub const ALL: &'static [Reset] = &[#(Reset::#variants),*];

            /// The slot family, state or buffer.
            pub fn name(self) -> &'static str {
                match self { #(Reset::#variants => #names,)* _ => "" }
            }

            /// When it starts anew.
            pub fn when(self) -> ::unio::interface::When {
                match self { #(Reset::#variants => ::unio::interface::When::#whens,)* _ => ::unio::interface::When::Never }
            }

            /// Its ranges and start values.
            pub fn parts(self) -> &'static [::unio::interface::ResetPart] {
                match self { #(Reset::#variants => &artefacts().resets[#indices].parts,)* _ => &[] }
            }
        }
    }
}

fn constant(name: &str) -> proc_macro2::Ident {
    format_ident!("{}", names::rust_const(name))
}

/// A constant in a module that has one of its own; no legal name ends in `_`.
fn beside(own: &str, name: &str) -> proc_macro2::Ident {
    let name = constant(name);
    if name == own { format_ident!("{own}_") } else { name }
}

/// `adamw.m` as `AdamwM`. The one capital word of Rust gets a `_`.
pub(crate) fn camel(name: &str) -> String {
    let name = names::rust_type(name);
    if name == "Self" { "Self_".to_owned() } else { name }
}
