//! Numbers as text, without an allocation.

/// Writes `number` as text into `digits`, and returns the text.
#[inline]
pub fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let at = write_decimal(number, digits);
    &digits[at..]
}

/// Writes `number` to the end of `digits`. Returns the index of its first digit.
#[inline]
pub fn write_decimal(number: u64, digits: &mut [u8]) -> usize {
    let mut at = digits.len();
    let mut left = number;
    // Two digits at a time need half of the divisions.
    while left >= 10 {
        let pair = (left % 100) as u8;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&[b'0' + pair / 10, b'0' + pair % 10]);
        left /= 100;
        if left == 0 {
            return at;
        }
    }
    digits[at - 1] = b'0' + left as u8;
    at - 1
}

/// Reads the digits at the beginning of `text`. Returns their number, and the text after them.
/// Returns `None` if there are no digits, or if their number does not fit.
#[inline]
pub fn leading_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut number, mut digits) = (0_u64, 0);
    for digit in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        digits += 1;
    }
    let (word, rest) = text.split_at(digits);
    // A number of 19 digits cannot overflow.
    if digits > 19 {
        number = str::from_utf8(word).ok()?.parse().ok()?;
    }
    (digits > 0).then_some((number, rest))
}

/// Reads numbers with a `separator` between any two. Returns `None` in place of a word that is not
/// a number, and then ends.
#[inline]
pub fn numbers(text: &[u8], separator: u8) -> impl Iterator<Item = Option<u64>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let read = leading_number(rest.take()?);
        let Some((number, behind)) = read else { return Some(None) };
        rest = behind.strip_prefix(&[separator]);
        Some(Some(number).filter(|_| rest.is_some() || behind.is_empty()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_ends_at_the_first_other_byte() {
        for number in [0, 9, 10, 9_999_999_999_999_999_999, u64::MAX] {
            let text = format!("{number} 5");
            assert_eq!(leading_number(text.as_bytes()), Some((number, &b" 5"[..])));
            assert_eq!(leading_number(number.to_string().as_bytes()), Some((number, &b""[..])));
        }
        for text in ["", " 1", "-1", "+1", "x", "18446744073709551616", "100000000000000000000"] {
            assert_eq!(leading_number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_list_of_numbers_ends_at_the_first_other_word() {
        let read = |text: &str| numbers(text.as_bytes(), b',').collect::<Vec<_>>();
        assert_eq!(read("17"), [Some(17)]);
        assert_eq!(read("1,22,333"), [Some(1), Some(22), Some(333)]);
        for text in ["1,x,3", "1,", "1,,3", "1,-2", "1,2x,3"] {
            assert_eq!(read(text), [Some(1), None], "{text}");
        }
        assert_eq!(read("1 2"), [None]);
        assert_eq!(read(""), [None]);
    }

    #[test]
    fn decimals_have_no_limit() {
        for number in [0, 9, 10, 99, 100, 101, 1_000, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
