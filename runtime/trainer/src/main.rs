//! trainer
unio::specs!();
fn main() {
    println!("{}", perception::FINGERPRINT);
}
