return standing()
