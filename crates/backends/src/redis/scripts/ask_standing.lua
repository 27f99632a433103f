-- The end of the script that asks how a node stands, after the function that tells.
return standing()
