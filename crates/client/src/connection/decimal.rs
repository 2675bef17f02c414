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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_no_limit() {
        for number in [0, 9, 10, 99, 100, 101, 1_000, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
