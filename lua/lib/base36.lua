-- Return a non-negative integer in base 36, in lower case.
local function base36(number)
  local digits, text = '0123456789abcdefghijklmnopqrstuvwxyz', ''
  repeat
    local digit = number % 36
    text = string.sub(digits, digit + 1, digit + 1) .. text
    number = (number - digit) / 36
  until number == 0
  return text
end
