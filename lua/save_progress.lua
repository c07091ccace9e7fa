-- save_progress: store the latest progress value of running jobs.
--
-- KEYS
--   1..  one progress key for each job
-- ARGV
--   1    TTL (s)
--   2..  one value for each job
-- RETURNS
--   the number of values stored
for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 1], 'EX', ARGV[1]) end
return #KEYS
