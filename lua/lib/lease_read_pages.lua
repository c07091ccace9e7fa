-- Read a stream, or a sorted set with its scores, in small pages. Returns the items and the bytes that remain of max_bytes;
-- it stops as soon as that number is negative.
local function lease_read_pages(key, kind, max_bytes)
  local items, remaining, from, page_size = {}, max_bytes, '-', 64
  while remaining >= 0 do
    local page
    if kind == 'stream' then
      page = redis.call('XRANGE', key, from, '+', 'COUNT', page_size)
    else
      page = redis.call('ZRANGE', key, #items / 2, #items / 2 + page_size - 1, 'WITHSCORES')
    end
    if #page == 0 then break end
    for _, item in ipairs(page) do
      items[#items + 1] = item
      for _, text in ipairs(kind == 'stream' and item[2] or {item}) do remaining = remaining - #text end
    end
    if kind == 'stream' then from = '(' .. page[#page][1] end
  end
  return items, remaining
end
